#include "isa/avx2_vnni/vec.h"
//
#include "isa/avx2_vnni/compact.inl"
