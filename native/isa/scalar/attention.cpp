#include "isa/scalar/vec.h"
//
#include "generic/attention.inl"
