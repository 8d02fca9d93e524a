// vdpbf16ps in two steps; equal to it while nothing falls below the normal range, where the instruction
// flushes.
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vf bf16_pair(vf acc, vi weights, int32_t x) {
  const vi high = set1i(int32_t(0xffff0000)), both = set1i(x);
  acc = fma(from_bits(andi(both, high)), from_bits(andi(weights, high)), acc);
  return fma(from_bits(shl<16>(both)), from_bits(shl<16>(weights)), acc);
}

}  // namespace kvasir::KVASIR_ISA
