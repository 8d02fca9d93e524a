// Integer linears: exact int8 dots per group of 32, floats above (kernels.h, "Rows"). A level brings
//   struct Unpacked; void unpack4(const uint8_t*, Unpacked&); void unpack8(const uint8_t*, Unpacked&);
//   int_dots<MR, NT, Bits, From, To>(const Unpacked* u, const int8_t* const* a, int64_t offset,
//   const int32_t* start, vf* dots): for each of NT tiles and MR rows float(start[i] + sum of a * weight) per
//   column, exact, the row's 32 values being at a[i] + offset; over registers From to To, four k each. Bits
//   bounds the weights; start may be null;
//   void sums16(const int8_t* a, int64_t n, int32_t* sums): the sums of n runs of 16, n even;
//   kPanels: whether many rows pay for unpacking apart.
#pragma once
#include "generic/linear_formats.inl"

namespace kvasir::KVASIR_ISA {

// linear_panel.inl
template <class F>
struct PackedTiles;
template <class F, int NT, class Source>
bool run_panels(const LinearArgs& a, int64_t tile, const Source& source);

// The input rows of a block of output rows.
template <int MR>
struct RowsAt {
  const int8_t* q[MR];
  const float *sums[MR], *scales[MR];

  __attribute__((always_inline)) inline RowsAt(const LinearArgs& a, const int64_t* r, int64_t n = MR) {
    const Rows& x = *a.x;
    for (int64_t i = 0; i < n; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * (a.K / kGroup);
      scales[i] = x.scales + r[i] * (a.K / x.block);
    }
  }

  template <int N>
  __attribute__((always_inline)) inline RowsAt(const RowsAt<N>& x, int64_t m) {
    for (int i = 0; i < MR; i++) q[i] = x.q[m + i], sums[i] = x.sums[m + i], scales[i] = x.scales[m + i];
  }
};

// Of some rows and groups: what the integer sums start from, so that zero points cost nothing, and the sums
// of activations that the rows do not bring.
template <class F, int kMaxRows, int kMaxGroups>
struct Starts {
  static constexpr bool kUsed = F::kZero != 0;
  static constexpr bool kSums = F::kRuns == 2 && (F::kMins || kUsed);
  int32_t sums[kMaxRows][kMaxGroups * F::kRuns], starts[kMaxRows][kMaxGroups * F::kRuns];

  // Groups [g0, g1) of row m.
  template <int MR>
  inline __attribute__((always_inline)) void set(const RowsAt<MR>& x, int64_t m, int64_t g0, int64_t g1) {
    const int64_t n = (g1 - g0) * F::kRuns;
    if constexpr (kSums) {
      sums16(x.q[m] + g0 * kGroup, n, sums[m]);
      for (int64_t i = 0; i < n; i++) starts[m][i] = -F::kZero * sums[m][i];
    } else if constexpr (kUsed) {
      for (int64_t i = 0; i < n; i++) starts[m][i] = -F::kZero * int32_t(x.sums[m][g0 + i]);
    }
  }
};

// A format's packed tiles. Per column and row: blk = fma(dot, scale, blk), then blk = fma(min, sum, blk)
// where the format has mins, over the groups of an activation block (of two runs the lower first); total =
// fma(blk, d, total) over the blocks.
template <class F>
struct IntTile {
  static constexpr int kRows = kIntRows;
  // With two scales a group eight rows at once take 10 % longer than four twice (Q6_K, Zen 5).
  static constexpr bool kEight = F::kRuns == 1;
  // Eight rows of two tiles leave no registers for scales that are products.
  static constexpr int kPairedRows = F::kSuper == 32 ? 8 : 4;
  static constexpr int64_t kGroups = F::kSuper / kGroup, kBlock = F::kHead + kGroups * F::kBytes;
  static int64_t bytes(int64_t K) { return K / F::kSuper * kBlock; }

  // Group g of NT tiles that lie `stride` apart.
  template <int NT, bool Fetch>
  static __attribute__((always_inline)) inline void read(const uint8_t* w, int64_t stride, int64_t g,
                                                         Unpacked* u, Scales* s) {
    const uint8_t* head = w + g / kGroups * kBlock;
    const uint8_t* p = head + F::kHead + g % kGroups * F::kBytes;
    for (int t = 0; t < NT; t++) {
      if constexpr (Fetch) fetch<NT, F::kBytes>(w, p, stride, t);
      F::unpack(p + t * stride, u[t]);
      F::scales(head + t * stride, p + t * stride, s[t]);
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    constexpr int kSpan = 8;
    const RowsAt<MR> x(a, r);
    Starts<F, MR, kSpan> starts;
    const int64_t groups = a.K / kGroup, per_block = a.x->block / kGroup, n_blocks = groups / per_block;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = g + per_block; g < end; g++) {
        if (starts.kSums || starts.kUsed)
          if (g % kSpan == 0)
            for (int i = 0; i < MR; i++) starts.set(x, i, g, g + kSpan < groups ? g + kSpan : groups);
        Unpacked u[NT];
        Scales s[NT];
        read<NT, true>(w, bytes(a.K), g, u, s);
        group<MR, NT>(u, s, x, g, starts, 0, g % kSpan, blk);
      }
      for (int i = 0; i < MR; i++) {
        const vf d = set1(x.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
  }

  // Group g; `starts` has it from row m on as its group `at`.
  template <int MR, int NT, class S>
  static __attribute__((always_inline)) inline void group(const Unpacked* u, const Scales* s,
                                                          const RowsAt<MR>& x, int64_t g, const S& starts,
                                                          int64_t m, int64_t at, vf* blk) {
    float sum[2][MR];
    int32_t start[2][MR];
    for (int i = 0; i < MR; i++)
      for (int h = 0; h < F::kRuns; h++) {
        sum[h][i] = S::kSums ? float(starts.sums[m + i][at * F::kRuns + h]) : x.sums[i][g];
        start[h][i] = S::kUsed ? starts.starts[m + i][at * F::kRuns + h] : 0;
      }
    if constexpr (F::kRuns == 1) {
      run<MR, NT, 0, 8>(u, s, x.q, g * kGroup, sum[0], start[0], blk);
    } else {
      run<MR, NT, 0, 4>(u, s, x.q, g * kGroup, sum[0], start[0], blk);
      run<MR, NT, 4, 8>(u, s, x.q, g * kGroup, sum[1], start[1], blk);
    }
  }

  template <int MR, int NT, int From, int To>
  static __attribute__((always_inline)) inline void run(const Unpacked* u, const Scales* s,
                                                        const int8_t* const* q, int64_t offset,
                                                        const float* sum, const int32_t* start, vf* blk) {
    vf dot[MR * NT];
    int_dots<MR, NT, F::kBits, From, To>(u, q, offset, F::kZero ? start : nullptr, dot);
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < MR; i++) {
        const int n = t * MR + i;
        blk[n] = fma(dot[n], s[t].scale[From / 4], blk[n]);
        if constexpr (F::kMins) blk[n] = fma(s[t].min[From / 4], set1(sum[i]), blk[n]);
      }
  }

  template <int NT>
  static bool many(const LinearArgs& a, int64_t tile) {
    if constexpr (kPanels)
      return run_panels<F, NT>(a, tile, PackedTiles<F>{a.w + tile * bytes(a.K), bytes(a.K)});
    else
      return false;
  }
};

}  // namespace kvasir::KVASIR_ISA
