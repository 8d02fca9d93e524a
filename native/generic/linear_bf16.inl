// bf16 x bf16 by exact widening: products of two bf16 are exact in f32, chain k even then odd, segments as in f32.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

struct Bf16Tile {
  static constexpr int kRows = kFloatRows;
  static int64_t bytes(int64_t K) { return (K + 1) / 2 * 2 * kTileCols * 2; }

  static __attribute__((always_inline)) inline vf widen(uint16_t h) { return from_bits(shl<16>(set1i(h))); }

  template <int MR>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a, const int64_t* r, vf* total) {
    const int32_t* pairs = reinterpret_cast<const int32_t*>(w);
    const uint16_t* x[MR];
    for (int i = 0; i < MR; i++) {
      x[i] = static_cast<const uint16_t*>(a.x->data) + r[i] * a.x->ld;
      total[i] = zero();
    }
    for (int64_t k0 = 0; k0 < a.K; k0 += kSegment) {
      const int64_t k1 = k0 + kSegment < a.K ? k0 + kSegment : a.K;
      vf acc[MR];
      for (int i = 0; i < MR; i++) acc[i] = zero();
      for (int64_t k = k0; k < k1; k += 2) {
        const vi pair = loadi(pairs + k / 2 * kTileCols);
        const vf even = from_bits(shl<16>(pair)), odd = from_bits(andi(pair, set1i(int32_t(0xffff0000))));
        for (int i = 0; i < MR; i++) {
          acc[i] = fma(widen(x[i][k]), even, acc[i]);
          if (k + 1 < a.K) acc[i] = fma(widen(x[i][k + 1]), odd, acc[i]);
        }
      }
      for (int i = 0; i < MR; i++) total[i] = add(total[i], acc[i]);
    }
  }
};

void linear_bf16(const LinearArgs& a) { run_linear<Bf16Tile>(a); }

}  // namespace kvasir::KVASIR_ISA
