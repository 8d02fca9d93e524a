// Integer linears: exact int8 dots per group of 32, floats above (kernels.h, "Rows"). A level brings
//   struct Unpacked; void unpack4(const uint8_t*, Unpacked&); void unpack8(const uint8_t*, Unpacked&);
//   int_dots<MR, NT, Bits, From, To>(const Unpacked* u, const int8_t* const* a, int64_t offset,
//   const int32_t* start, vf* dots): for each of NT tiles and MR rows float(start[i] + sum of a * weight) per
//   column, exact, the row's 32 values being at a[i] + offset; over registers From to To, four k each. Bits
//   bounds the weights; start may be null;
//   float sum16(const int8_t* a); kPanels: whether many rows pay for unpacking apart.
#pragma once
#include "generic/linear_formats.inl"

namespace kvasir::KVASIR_ISA {

// linear_panel.inl
template <class F, int NT>
bool run_panels(const LinearArgs& a, int64_t tile);

constexpr int kPrefetch = 2048;  // bytes ahead

// Eight rows stall the hardware prefetcher of Zen 5: 6 GB/s without, 29 with (q8, weights in DRAM). Fetching
// some of the weights past the cache (prefetchnta), so that others stay from step to step, gained nothing:
// 88 MB of weights, 32 MB of cache, all variants within 1 %.
template <int kBytes>
KVASIR_INLINE void fetch_ahead(const uint8_t* w) {
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(w + kPrefetch + line, 0, 3);
}

// The input rows of a block of output rows.
template <int MR>
struct RowsAt {
  const int8_t* q[MR];
  const float *sums[MR], *scales[MR];

  __attribute__((always_inline)) inline RowsAt(const LinearArgs& a, const int64_t* r) {
    const Rows& x = *a.x;
    for (int i = 0; i < MR; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * (a.K / kGroup);
      scales[i] = x.scales + r[i] * (a.K / x.block);
    }
  }
};

// A format's packed tiles. Per column and row: blk = fma(dot, scale, blk), then blk = fma(min, sum, blk)
// where the format has mins, over the groups of an activation block (of two runs the lower first); total =
// fma(blk, d, total) over the blocks.
template <class F>
struct IntTile {
  static constexpr int kRows = kIntRows;
  static constexpr int64_t kGroups = F::kSuper / kGroup, kBlock = F::kHead + kGroups * F::kBytes;
  static constexpr bool kSums = F::kRuns == 2 && (F::kMins || F::kZero != 0);
  static int64_t bytes(int64_t K) { return K / F::kSuper * kBlock; }

  // Group g of NT tiles that lie `stride` apart.
  template <int NT>
  static __attribute__((always_inline)) inline void read(const uint8_t* w, int64_t stride, int64_t g,
                                                         Unpacked* u, Scales* s) {
    const uint8_t* head = w + g / kGroups * kBlock;
    const uint8_t* p = head + F::kHead + g % kGroups * F::kBytes;
    for (int t = 0; t < NT; t++) {
      fetch_ahead<F::kBytes>(p + t * stride);
      F::unpack(p + t * stride, u[t]);
      F::scales(head + t * stride, p + t * stride, s[t]);
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const RowsAt<MR> x(a, r);
    const int64_t per_block = a.x->block / kGroup, n_blocks = a.K / a.x->block;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = g + per_block; g < end; g++) group<MR, NT>(w, a, x, g, blk);
      for (int i = 0; i < MR; i++) {
        const vf d = set1(x.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void group(const uint8_t* w, const LinearArgs& a,
                                                          const RowsAt<MR>& x, int64_t g, vf* blk) {
    Unpacked u[NT];
    Scales s[NT];
    read<NT>(w, bytes(a.K), g, u, s);
    float sum[2][MR];
    for (int i = 0; i < MR; i++) {
      sum[0][i] = kSums ? sum16(x.q[i] + g * kGroup) : x.sums[i][g];
      sum[1][i] = x.sums[i][g] - sum[0][i];
    }
    if constexpr (F::kRuns == 1) {
      run<MR, NT, 0, 8>(u, s, x.q, g * kGroup, sum[0], nullptr, blk);
    } else {
      run<MR, NT, 0, 4>(u, s, x.q, g * kGroup, sum[0], nullptr, blk);
      run<MR, NT, 4, 8>(u, s, x.q, g * kGroup, sum[1], nullptr, blk);
    }
  }

  // start: -kZero * sum as integers, or null to subtract in floats: the same bits, both are exact.
  template <int MR, int NT, int From, int To>
  static __attribute__((always_inline)) inline void run(const Unpacked* u, const Scales* s,
                                                        const int8_t* const* q, int64_t offset,
                                                        const float* sum, const int32_t* start, vf* blk) {
    vf dot[MR * NT];
    int_dots<MR, NT, F::kBits, From, To>(u, q, offset, start, dot);
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < MR; i++) {
        const int n = t * MR + i;
        if (F::kZero != 0 && start == nullptr) dot[n] = fma(set1(-F::kZero), set1(sum[i]), dot[n]);
        blk[n] = fma(dot[n], s[t].scale[From / 4], blk[n]);
        if constexpr (F::kMins) blk[n] = fma(s[t].min[From / 4], set1(sum[i]), blk[n]);
      }
  }

  template <int NT>
  static bool many(const LinearArgs& a, int64_t tile) {
    if constexpr (kPanels)
      return run_panels<F, NT>(a, tile);
    else
      return false;
  }
};

}  // namespace kvasir::KVASIR_ISA
