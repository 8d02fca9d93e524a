// Linears that hold weights in registers (held.inl).
#pragma once
#include "kernels.h"

namespace kvasir::isa_avx512_vnni {

void fill_held_linears(Kernels& k);

}  // namespace kvasir::isa_avx512_vnni
