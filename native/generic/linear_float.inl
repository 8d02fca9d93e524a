// Float linears: one FMA chain per column over k ascending, restarted every kSegment elements, segments added
// in order.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

constexpr int64_t kSegment = 256;

struct F32Tile {
  static constexpr int kRows = kFloatRows;
  static int64_t bytes(int64_t K) { return K * kTileCols * 4; }

  template <int MR>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const float* weights = reinterpret_cast<const float*>(w);
    const float* x[MR];
    for (int i = 0; i < MR; i++) {
      x[i] = static_cast<const float*>(a.x->data) + r[i] * a.x->ld;
      total[i] = zero();
    }
    for (int64_t k0 = 0; k0 < a.K; k0 += kSegment) {
      const int64_t k1 = k0 + kSegment < a.K ? k0 + kSegment : a.K;
      vf acc[MR];
      for (int i = 0; i < MR; i++) acc[i] = zero();
      for (int64_t k = k0; k < k1; k++) {
        const vf column = load(weights + k * kTileCols);
        for (int i = 0; i < MR; i++) acc[i] = fma(set1(x[i][k]), column, acc[i]);
      }
      for (int i = 0; i < MR; i++) total[i] = add(total[i], acc[i]);
    }
  }
};

void linear_f32(const LinearArgs& a) { run_linear<F32Tile>(a); }

}  // namespace kvasir::KVASIR_ISA
