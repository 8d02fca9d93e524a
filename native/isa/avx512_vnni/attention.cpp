#include "isa/avx512_vnni/vec.h"
//
#include "generic/attention.inl"
