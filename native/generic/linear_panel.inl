// Integer linears of many rows: a panel of NT tiles and some groups of K is unpacked once, into the first
// cache, and meets block after block of rows there. The order of operations is that of IntTile::rows.
#pragma once
#include "generic/linear_int.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kPanelRows = 128, kPanelGroups = 16;

template <class F, int NT>
struct Panel {
  using Tile = IntTile<F>;
  static constexpr bool kSums = F::kRuns == 2 || F::kZero != 0;

  struct Group {
    Unpacked u[NT];
    Scales s[NT];
  };
  Group groups[kPanelGroups];
  vf totals[kPanelRows][NT];
  // of each row and run of the panel's groups; only where kSums
  float sums[kPanelRows][kPanelGroups * F::kRuns];
  int32_t starts[kPanelRows][kPanelGroups * F::kRuns];

  // Rows [m0, m1), groups [g0, g1).
  struct Part {
    int64_t m0, m1, g0, g1;
  };

  inline __attribute__((always_inline)) void unpack(const LinearArgs& a, const uint8_t* w, const Part& p) {
    for (int64_t g = p.g0; g < p.g1; g++)
      Tile::template read<NT>(w, Tile::bytes(a.K), g, groups[g - p.g0].u, groups[g - p.g0].s);
    if constexpr (kSums)
      for (int64_t m = p.m0; m < p.m1; m++) sum_runs(a, m, p);
  }

  inline __attribute__((always_inline)) void sum_runs(const LinearArgs& a, int64_t m, const Part& p) {
    int64_t r[1];
    row_indices(a, m, 1, r);
    const RowsAt<1> x(a, r);
    float* sum = sums[m - p.m0];
    for (int64_t g = p.g0; g < p.g1; g++, sum += F::kRuns) {
      sum[0] = F::kRuns == 2 ? sum16(x.q[0] + g * kGroup) : x.sums[0][g];
      if constexpr (F::kRuns == 2) sum[1] = x.sums[0][g] - sum[0];
    }
    const int64_t n = (p.g1 - p.g0) * F::kRuns;
    for (int64_t i = 0; i < n; i++) starts[m - p.m0][i] = -F::kZero * int32_t(sums[m - p.m0][i]);
  }

  template <int MR>
  inline __attribute__((always_inline)) void rows(const LinearArgs& a, int64_t tile, int64_t m,
                                                  const Part& p) {
    int64_t r[MR];
    row_indices(a, m, MR, r);
    const RowsAt<MR> x(a, r);
    const int64_t per_block = a.x->block / kGroup;
    vf(*sum)[NT] = totals + (m - p.m0);
    vf total[MR * NT];
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) total[t * MR + i] = p.g0 == 0 ? zero() : sum[i][t];
    for (int64_t g = p.g0; g < p.g1;) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      const int64_t b = g / per_block;
      for (const int64_t end = g + per_block; g < end; g++) group<MR>(x, m - p.m0, g, p, blk);
      for (int i = 0; i < MR; i++) {
        const vf d = set1(x.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
    if (p.g1 * kGroup == a.K) return finish<MR, NT>(a, tile, m, total);
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) sum[i][t] = total[t * MR + i];
  }

  template <int MR>
  inline __attribute__((always_inline)) void group(const RowsAt<MR>& x, int64_t m, int64_t g, const Part& p,
                                                   vf* blk) {
    float sum[2][MR];
    int32_t start[2][MR];
    for (int i = 0; i < MR; i++)
      for (int h = 0; h < F::kRuns; h++) {
        const int64_t at = (g - p.g0) * F::kRuns + h;
        sum[h][i] = kSums ? sums[m + i][at] : x.sums[i][g];
        if (F::kZero != 0) start[h][i] = starts[m + i][at];
      }
    const Group& w = groups[g - p.g0];
    const int64_t offset = g * kGroup;
    if constexpr (F::kRuns == 1) {
      Tile::template run<MR, NT, 0, 8>(w.u, w.s, x.q, offset, sum[0], F::kZero ? start[0] : nullptr, blk);
    } else {
      Tile::template run<MR, NT, 0, 4>(w.u, w.s, x.q, offset, sum[0], F::kZero ? start[0] : nullptr, blk);
      Tile::template run<MR, NT, 4, 8>(w.u, w.s, x.q, offset, sum[1], F::kZero ? start[1] : nullptr, blk);
    }
  }
};

// Groups of a panel: whole activation blocks, in panels of about the same size.
KVASIR_INLINE int64_t panel_step(const LinearArgs& a) {
  const int64_t groups = a.K / kGroup, per_block = a.x->block / kGroup;
  const int64_t panels = (groups + kPanelGroups - 1) / kPanelGroups, blocks = groups / per_block;
  const int64_t step = (blocks + panels - 1) / panels * per_block;
  return step <= kPanelGroups ? step : kPanelGroups / per_block * per_block;
}

// False where an activation block exceeds a panel.
template <class F, int NT>
bool run_panels(const LinearArgs& a, int64_t tile) {
  if (a.x->block > kPanelGroups * kGroup) return false;
  const int64_t groups = a.K / kGroup, step = panel_step(a);
  alignas(64) Panel<F, NT> panel;
  const uint8_t* w = a.w + tile * IntTile<F>::bytes(a.K);
  for (int64_t m0 = a.m0; m0 < a.m1; m0 += kPanelRows)
    for (int64_t g = 0; g < groups; g += step) {
      const int64_t m1 = m0 + kPanelRows < a.m1 ? m0 + kPanelRows : a.m1;
      const typename Panel<F, NT>::Part part{m0, m1, g, g + step < groups ? g + step : groups};
      panel.unpack(a, w, part);
      int64_t m = m0;
      for (; m + kIntRows <= m1; m += kIntRows) panel.template rows<kIntRows>(a, tile, m, part);
      for (; m < m1; m++) panel.template rows<1>(a, tile, m, part);
    }
  return true;
}

}  // namespace kvasir::KVASIR_ISA
