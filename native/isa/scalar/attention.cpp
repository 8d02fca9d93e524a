#include "isa/scalar/vec.h"
//
#include "generic/pair_floats.inl"
//
#include "generic/attention.inl"
