#include "isa/avx2_vnni_emulated/vec.h"
//
#include "isa/avx2_vnni/compact.inl"
