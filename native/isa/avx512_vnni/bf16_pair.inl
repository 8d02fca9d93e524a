// A pair of bf16 products (linear_bf16.inl) with vdpbf16ps.
#include "kernels.h"

namespace kvasir::isa_avx512_vnni {

KVASIR_INLINE vf bf16_pair(vf acc, vi weights, int32_t x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)set1i(x));
}

}  // namespace kvasir::isa_avx512_vnni
