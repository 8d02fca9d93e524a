#include "isa/avx2/vec.h"
//
#include "generic/pair_floats.inl"
//
#include "generic/attention.inl"
