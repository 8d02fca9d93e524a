// Integer linears only: the rest is AVX-512 VNNI's. Not bf16: tdpbf16ps sums even and odd k apart and flushes
// denormals, other bits than every other level's.
#include "isa/amx/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_amx(Kernels& k) {
  k.level = "amx";
  isa_amx::fill_integer_linears(k);
}

}  // namespace kvasir
