// Integer linears: exact int8 dots per group of 32, floats above (kernels.h, "Rows"). A level brings
//   struct Unpacked; void unpack4(const uint8_t*, Unpacked&); void unpack8(const uint8_t*, Unpacked&);
//   vf int_dot(const Unpacked&, const int8_t* a): float(sum of a * weight) per column, exact;
//   kQ8Zero: what unpack8 leaves to be subtracted (128 where the instruction wants unsigned weights, else 0).
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

struct FormatQ4m {
  static constexpr int kQuants = 256, kBytes = 320, kZero = 0;
  static constexpr bool kMins = true;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
};
struct FormatQ4z {
  static constexpr int kQuants = 256, kBytes = 288, kZero = 8;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack4(p, u); }
};
struct FormatQ8 {
  static constexpr int kQuants = 512, kBytes = 544, kZero = kQ8Zero;
  static constexpr bool kMins = false;
  static __attribute__((always_inline)) inline void unpack(const uint8_t* p, Unpacked& u) { unpack8(p, u); }
};

constexpr int kPrefetch = 2048;  // bytes ahead

// Eight rows stall the hardware prefetcher of Zen 5: 6 GB/s without, 29 with (q8, weights in DRAM). Weights
// that do not fit the last-level cache are fetched past it, so that those that do stay there from step to
// step.
template <int kBytes>
KVASIR_INLINE void fetch_ahead(const uint8_t* w, bool stream) {
  if (stream)
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kPrefetch + line, 0, 0);
  else
    for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kPrefetch + line, 0, 3);
}

KVASIR_INLINE vf load_half(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }

// Per column and row: blk = fma(dot_g, scale_g, blk) over the groups of an activation block, total = fma(blk,
// d, total) over the blocks; the mins make a second pair of chains, added last.
template <class F>
struct IntTile {
  static constexpr int kRows = kIntRows;
  static int64_t bytes(int64_t K) { return K / kGroup * F::kBytes; }

  template <int MR>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const Rows& x = *a.x;
    const int64_t per_block = x.block / kGroup, n_blocks = a.K / x.block, groups = a.K / kGroup;
    const int8_t* q[MR];
    const float *sums[MR], *scales[MR];
    vf mins[MR];
    for (int i = 0; i < MR; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * groups;
      scales[i] = x.scales + r[i] * n_blocks;
      total[i] = mins[i] = zero();
    }
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR], bm[MR];
      for (int i = 0; i < MR; i++) blk[i] = bm[i] = zero();
      for (const int64_t end = g + per_block; g < end; g++, w += F::kBytes)
        group<MR>(w, g, a.stream, q, sums, blk, bm);
      for (int i = 0; i < MR; i++) {
        const vf d = set1(scales[i][b]);
        total[i] = fma(blk[i], d, total[i]);
        if constexpr (F::kMins) mins[i] = fma(bm[i], d, mins[i]);
      }
    }
    if constexpr (F::kMins)
      for (int i = 0; i < MR; i++) total[i] = add(total[i], mins[i]);
  }

  template <int MR>
  static __attribute__((always_inline)) inline void group(const uint8_t* w, int64_t g, bool stream,
                                                          const int8_t* const* q, const float* const* sums,
                                                          vf* blk, vf* bm) {
    fetch_ahead<F::kBytes>(w, stream);
    Unpacked u;
    F::unpack(w, u);
    const vf scale = load_half(w + F::kQuants);
    for (int i = 0; i < MR; i++) {
      vf dot = int_dot(u, q[i] + g * kGroup);
      if constexpr (F::kZero != 0) dot = fma(set1(-F::kZero), set1(sums[i][g]), dot);
      blk[i] = fma(dot, scale, blk[i]);
    }
    if constexpr (F::kMins) {
      const vf min = load_half(w + F::kQuants + 32);
      for (int i = 0; i < MR; i++) bm[i] = fma(min, set1(sums[i][g]), bm[i]);
    }
  }
};

void linear_q4m(const LinearArgs& a) { run_linear<IntTile<FormatQ4m>>(a); }
void linear_q4z(const LinearArgs& a) { run_linear<IntTile<FormatQ4z>>(a); }
void linear_q8(const LinearArgs& a) { run_linear<IntTile<FormatQ8>>(a); }

}  // namespace kvasir::KVASIR_ISA
