#include "isa/avx2/vec.h"
//
#include "generic/attention.inl"
