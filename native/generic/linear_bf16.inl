// bf16 x bf16 by pairs of k, in the order of vdpbf16ps: acc = fma(x1, w1, acc), then acc = fma(x0, w0, acc);
// segments as in f32. A level brings vf bf16_pair(vf acc, vi weights, int32_t x): weights and x hold element
// k low, k + 1 high.
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

struct Bf16Tile {
  static constexpr int kRows = kFloatRows, kPairedRows = 8;
  static constexpr bool kEight = true;
  template <int NT>
  static bool many(const LinearArgs&, int64_t) {
    return false;
  }
  static int64_t bytes(int64_t K) { return (K + 1) / 2 * 2 * kTileCols * 2; }

  // Elements k and k + 1 of a row; the one behind an odd K is zero.
  static __attribute__((always_inline)) inline int32_t pair_at(const uint16_t* x, int64_t k, int64_t K) {
    return int32_t(x[k] | (k + 1 < K ? uint32_t(x[k + 1]) << 16 : 0));
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const int32_t* pairs = reinterpret_cast<const int32_t*>(w);
    const int64_t tile = bytes(a.K) / int64_t(sizeof(int32_t));
    const uint16_t* x[MR];
    for (int i = 0; i < MR; i++) x[i] = static_cast<const uint16_t*>(a.x->data) + r[i] * a.x->ld;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t k0 = 0; k0 < a.K; k0 += kSegment) {
      const int64_t k1 = k0 + kSegment < a.K ? k0 + kSegment : a.K;
      vf acc[MR * NT];
      for (int n = 0; n < MR * NT; n++) acc[n] = zero();
      for (int64_t k = k0; k < k1; k += 2) {
        vi weights[NT];
        for (int t = 0; t < NT; t++) {
          const int32_t* p = pairs + k / 2 * kTileCols;
          fetch<NT, 64>(w, reinterpret_cast<const uint8_t*>(p), bytes(a.K), t, a.shape.ahead);
          weights[t] = loadi(p + t * tile);
        }
        for (int i = 0; i < MR; i++) {
          const int32_t value = pair_at(x[i], k, a.K);
          for (int t = 0; t < NT; t++) acc[t * MR + i] = bf16_pair(acc[t * MR + i], weights[t], value);
        }
      }
      for (int n = 0; n < MR * NT; n++) total[n] = add(total[n], acc[n]);
    }
  }
};

void linear_bf16(const LinearArgs& a) { run_linear<Bf16Tile>(a); }

}  // namespace kvasir::KVASIR_ISA
