// Integer and bf16 linears only: the rest is AVX-512's.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx512_vnni(Kernels& k) {
  k.level = "avx512_vnni";
  isa_avx512_vnni::fill_integer_linears(k);
  k.linear_bf16 = isa_avx512_vnni::linear_bf16;
}

}  // namespace kvasir
