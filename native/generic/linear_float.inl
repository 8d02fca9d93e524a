// Float linears: one FMA chain per column over k ascending, restarted every kSegment elements, segments added
// in order.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

struct F32Tile {
  static constexpr int kRows = kFloatRows, kPairedRows = 8;
  static constexpr bool kEight = true;
  template <int NT>
  static bool many(const LinearArgs&, int64_t) {
    return false;
  }
  static int64_t bytes(int64_t K) { return K * kTileCols * 4; }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const float* weights = reinterpret_cast<const float*>(w);
    const float* x[MR];
    for (int i = 0; i < MR; i++) x[i] = static_cast<const float*>(a.x->data) + r[i] * a.x->ld;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t k0 = 0; k0 < a.K; k0 += kSegment) {
      const int64_t k1 = k0 + kSegment < a.K ? k0 + kSegment : a.K;
      vf acc[MR * NT];
      for (int n = 0; n < MR * NT; n++) acc[n] = zero();
      for (int64_t k = k0; k < k1; k++) {
        vf columns[NT];
        for (int t = 0; t < NT; t++) {
          fetch<NT, 64>(w, reinterpret_cast<const uint8_t*>(weights + k * kTileCols), bytes(a.K), t);
          columns[t] = load(weights + (t * a.K + k) * kTileCols);
        }
        for (int i = 0; i < MR; i++) {
          const vf value = set1(x[i][k]);
          for (int t = 0; t < NT; t++) acc[t * MR + i] = fma(value, columns[t], acc[t * MR + i]);
        }
      }
      for (int n = 0; n < MR * NT; n++) total[n] = add(total[n], acc[n]);
    }
  }
};

void linear_f32(const LinearArgs& a) { run_linear<F32Tile>(a); }

}  // namespace kvasir::KVASIR_ISA
