// Integer linears: exact int8 dots per group of 32, floats above (kernels.h, "Rows"). A level brings
//   struct Unpacked; void unpack4(const uint8_t*, Unpacked&); void unpack8(const uint8_t*, Unpacked&);
//   int_dots<MR, NT, Bits, From, To>(const Unpacked* u, const int8_t* const* a, int64_t offset,
//   const int32_t* start, vf* dots): for each of NT tiles and MR rows float(start[i] + sum of a * weight) per
//   column, exact, the row's 32 values being at a[i] + offset; over registers From to To, four k each. Bits
//   bounds the weights; start may be null;
//   kDotsAskBits: whether int_dots looks at Bits; kPanels: whether many rows pay for unpacking apart.
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
  const int32_t* sums[MR];
  const float* scales[MR];

  __attribute__((always_inline)) inline RowsAt(const LinearArgs& a, const int64_t* r, int64_t n = MR) {
    const Rows& x = *a.x;
    for (int64_t i = 0; i < n; i++) {
      q[i] = static_cast<const int8_t*>(x.data) + r[i] * x.ld;
      sums[i] = x.sums + r[i] * (a.K / kGroup) * 2;
      scales[i] = x.scales + r[i] * (a.K / x.block);
    }
  }

  template <int N>
  __attribute__((always_inline)) inline RowsAt(const RowsAt<N>& x, int64_t m) {
    for (int i = 0; i < MR; i++) q[i] = x.q[m + i], sums[i] = x.sums[m + i], scales[i] = x.scales[m + i];
  }
};

// Of the activations that meet one run of a group. Unsigned, because those of a row that is not finite may be
// anything.
template <int Runs>
KVASIR_INLINE uint32_t run_sum(const int32_t* of_group, int run) {
  const uint32_t all = uint32_t(of_group[0]), first = uint32_t(of_group[1]);
  return Runs == 1 ? all : run == 0 ? first : all - first;
}

// What unpacked groups add to their activation block. Formats that agree in this meet many rows in one
// function (linear_panel.inl).
template <int Runs, bool Mins, int Bits, int Zero>
struct Dots {
  template <int MR, int NT>
  static __attribute__((always_inline)) inline void group(const Unpacked* u, const Scales* s,
                                                          const RowsAt<MR>& x, int64_t g, vf* blk) {
    if constexpr (Runs == 1) {
      run<MR, NT, 0, 8>(u, s, x, g, blk);
    } else {
      run<MR, NT, 0, 4>(u, s, x, g, blk);
      run<MR, NT, 4, 8>(u, s, x, g, blk);
    }
  }

  template <int MR, int NT, int From, int To>
  static __attribute__((always_inline)) inline void run(const Unpacked* u, const Scales* s,
                                                        const RowsAt<MR>& x, int64_t g, vf* blk) {
    int32_t sum[MR], start[MR];  // zero points are where the dots start, and cost nothing
    for (int i = 0; i < MR; i++) {
      const uint32_t of_run = run_sum<Runs>(x.sums[i] + 2 * g, From / 4);
      sum[i] = int32_t(of_run);
      start[i] = int32_t(-uint32_t(Zero) * of_run);
    }
    vf dot[MR * NT];
    int_dots<MR, NT, Bits, From, To>(u, x.q, g * kGroup, Zero ? start : nullptr, dot);
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < MR; i++) {
        const int n = t * MR + i;
        blk[n] = fma(dot[n], s[t].scale[From / 4], blk[n]);
        if constexpr (Mins) blk[n] = fma(s[t].min[From / 4], set1(float(sum[i])), blk[n]);
      }
  }
};
template <class F>
using DotsOf = Dots<F::kRuns, F::kMins, kDotsAskBits ? F::kBits : 8, F::kZero>;

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

  // Group g of NT tiles that lie `stride` apart; asks for what lies `ahead`.
  template <int NT>
  static __attribute__((always_inline)) inline void read(const uint8_t* w, int64_t stride, int64_t g,
                                                         Unpacked* u, Scales* s, int32_t ahead) {
    const uint8_t* head = w + g / kGroups * kBlock;
    const uint8_t* p = head + F::kHead + g % kGroups * F::kBytes;
    for (int t = 0; t < NT; t++) {
      fetch<NT, F::kBytes>(w, p, stride, t, ahead);
      F::unpack(p + t * stride, u[t]);
      F::scales(head + t * stride, p + t * stride, s[t]);
    }
  }

  template <int MR, int NT>
  static __attribute__((always_inline)) inline void rows(const uint8_t* w, const LinearArgs& a,
                                                         const int64_t* r, vf* total) {
    const RowsAt<MR> x(a, r);
    const int64_t groups = a.K / kGroup, per_block = a.x->block / kGroup, n_blocks = groups / per_block;
    for (int n = 0; n < MR * NT; n++) total[n] = zero();
    for (int64_t b = 0, g = 0; b < n_blocks; b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      for (const int64_t end = g + per_block; g < end; g++) {
        Unpacked u[NT];
        Scales s[NT];
        read<NT>(w, bytes(a.K), g, u, s, a.shape.ahead);
        DotsOf<F>::template group<MR, NT>(u, s, x, g, blk);
      }
      for (int i = 0; i < MR; i++) {
        const vf d = set1(x.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
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
