// Integer linears: exact int8 dots per group of 32, floats above (kernels.h, "Rows"). A level brings
//   struct Unpacked; void unpack4(const uint8_t*, Unpacked&); void unpack8(const uint8_t*, Unpacked&);
//   int_dots<MR, NT, From = 0, To = 8>(const Unpacked* u, const int8_t* const* a, int64_t offset, vf* dots):
//   for each of NT tiles and MR rows float(sum of a * weight) per column, exact, the row's 32 values being at
//   a[i] + offset; over registers From to To, four k each; kQ8Zero: what unpack8 leaves to be subtracted (128
//   where the instruction wants unsigned weights, else 0).
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

// Per column and row: blk = fma(dot_g, scale_g, blk), then blk = fma(min_g, sum_g, blk) where the format has
// mins, over the groups of an activation block; total = fma(blk, d, total) over the blocks.
template <class F>
struct IntTile {
  static constexpr int kRows = kIntRows;
  static int64_t bytes(int64_t K) { return K / kGroup * F::kBytes; }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const Rows& x = *a.x;
    const int64_t per_block = x.block / kGroup, n_blocks = a.K / x.block, groups = a.K / kGroup;
    const int8_t* q[MR];
    const float *sums[MR], *scales[MR];
    for (int i = 0; i < MR; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * groups;
      scales[i] = x.scales + r[i] * n_blocks;
    }
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = g + per_block; g < end; g++, w += F::kBytes)
        group<MR, NT>(w, bytes(a.K), g, a.stream, q, sums, blk);
      for (int i = 0; i < MR; i++) {
        const vf d = set1(scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void group(const uint8_t* w, int64_t stride, int64_t g,
                                                          bool stream, const int8_t* const* q,
                                                          const float* const* sums, vf* blk) {
    Unpacked u[NT];
    for (int t = 0; t < NT; t++) {
      fetch_ahead<F::kBytes>(w + t * stride, stream);
      F::unpack(w + t * stride, u[t]);
    }
    vf dot[MR * NT];
    int_dots<MR, NT>(u, q, g * kGroup, dot);
    for (int t = 0; t < NT; t++) {
      const uint8_t* tail = w + t * stride + F::kQuants;
      const vf scale = load_half(tail), min = F::kMins ? load_half(tail + 32) : zero();
      for (int i = 0; i < MR; i++) {
        const int n = t * MR + i;
        if constexpr (F::kZero != 0) dot[n] = fma(set1(-F::kZero), set1(sums[i][g]), dot[n]);
        blk[n] = fma(dot[n], scale, blk[n]);
        if constexpr (F::kMins) blk[n] = fma(min, set1(sums[i][g]), blk[n]);
      }
    }
  }
};

void linear_q4m(const LinearArgs& a) { run_linear<IntTile<FormatQ4m>>(a); }
void linear_q4z(const LinearArgs& a) { run_linear<IntTile<FormatQ4z>>(a); }
void linear_q8(const LinearArgs& a) { run_linear<IntTile<FormatQ8>>(a); }

}  // namespace kvasir::KVASIR_ISA
