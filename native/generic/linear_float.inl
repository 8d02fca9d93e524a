// Float linears: one FMA chain per column over k ascending, restarted every kSegment elements, segments added
// in order.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vf load_weights(const float* p) { return load(p); }
KVASIR_INLINE vf load_weights(const uint16_t* p) { return load_f16(p); }

// Weights of f32, or halves, which become f32 when they are read.
template <class Element>
struct FloatTile {
  static constexpr int kRows = kFloatRows, kPairedRows = 8;
  static constexpr bool kEight = true;
  template <int NT>
  static bool many(const LinearArgs&, int64_t) {
    return false;
  }
  static constexpr int kStep = 64 / (kTileCols * sizeof(Element));  // k of a line
  static int64_t bytes(int64_t K) { return K * kTileCols * int64_t(sizeof(Element)); }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const Element* weights = reinterpret_cast<const Element*>(w);
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
          const uint8_t* p = reinterpret_cast<const uint8_t*>(weights + k * kTileCols);
          if (k % kStep == 0) fetch<NT, 64>(w, p, bytes(a.K), t, a.shape.ahead);
          columns[t] = load_weights(weights + (t * a.K + k) * kTileCols);
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

void linear_f32(const LinearArgs& a) { run_linear<FloatTile<float>>(a); }
void linear_f16(const LinearArgs& a) { run_linear<FloatTile<uint16_t>>(a); }

}  // namespace kvasir::KVASIR_ISA
