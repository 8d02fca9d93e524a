// Integer linears only: the rest is AVX2's.
#include "isa/avx2_vnni/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx2_vnni(Kernels& k) {
  k.level = "avx2_vnni";
  isa_avx2_vnni::fill_integer_linears(k);
}

}  // namespace kvasir
