#include "isa/avx512/vec.h"
//
#include "generic/attention.inl"
