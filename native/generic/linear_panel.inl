// Integer linears of many rows: a panel of NT tiles and some groups of K is unpacked once, into the first
// cache, and meets block after block of rows there. The order of operations is that of IntTile::rows.
#pragma once
#include "generic/linear_int.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kPanelRows = 128, kPanelGroups = 18;
// Fewer rows wait for the weights of a panel, so theirs are small: the first is there sooner.
constexpr int kFewRows = 64, kFewGroups = 8;

// Packed weights of NT tiles that will be wanted soon: [at, end) of the first, the others `stride` behind.
template <int NT>
struct Coming {
  const uint8_t *at, *end;
  int64_t stride;

  inline __attribute__((always_inline)) void fetch(int64_t bytes) {
    for (const uint8_t* to = at + bytes; at < to && at < end; at += 64)
      for (int t = 0; t < NT; t++) __builtin_prefetch(at + t * stride, 0, 2);
  }
};

// Of n rows from m on. A call: its loops would be compiled into every format.
inline __attribute__((noinline)) RowsAt<kPanelRows> panel_inputs(const LinearArgs& a, int64_t m, int64_t n) {
  int64_t r[kPanelRows];
  row_indices(a, m, int(n), r);
  return RowsAt<kPanelRows>(a, r, n);
}

// Rows from m on; D: Dots of what is unpacked.
template <class D, int NT>
struct Panel {
  struct Group {
    Unpacked u[NT];
    Scales s[NT];
  };
  Group groups[kPanelGroups];
  vf totals[kPanelRows][NT];

  const LinearArgs& a;
  const int64_t tile, m0, n_rows;
  const RowsAt<kPanelRows> x;

  inline __attribute__((always_inline)) Panel(const LinearArgs& args, int64_t first_tile, int64_t m)
      : a(args),
        tile(first_tile),
        m0(m),
        n_rows(args.m1 - m < kPanelRows ? args.m1 - m : kPanelRows),
        x(panel_inputs(args, m, n_rows)) {}

  // All rows and groups [g0, g1), which are unpacked, while the weights that come next are fetched. A call:
  // compiled into every format the rows of a panel were a third of the linears.
  __attribute__((noinline)) void run(int64_t g0, int64_t g1, Coming<NT> coming) {
    const int64_t share = (coming.end - coming.at) * kIntRows / n_rows + 1;
    int64_t m = 0;
    for (; m + kIntRows <= n_rows; m += kIntRows) {
      coming.fetch(share);
      rows<kIntRows>(m, g0, g1);
    }
    for (; m < n_rows; m++) rows<1>(m, g0, g1);
  }

  template <int MR>
  inline __attribute__((always_inline)) void rows(int64_t m, int64_t g0, int64_t g1) {
    const RowsAt<MR> at(x, m);
    const int64_t per_block = a.x->block / kGroup;
    vf total[MR * NT];
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) total[t * MR + i] = g0 == 0 ? zero() : totals[m + i][t];
    for (int64_t g = g0, b = g0 / per_block; g < g1; g += per_block, b++) {
      vf blk[MR * NT];
      for (int n = 0; n < MR * NT; n++) blk[n] = zero();
      const auto add_group = [&](int64_t i) __attribute__((always_inline)) {
        D::template group<MR, NT>(groups[i - g0].u, groups[i - g0].s, at, i, blk);
      };
      if (MR == kIntRows && per_block == 2) {  // 2 % faster than the loop, which stays one
        add_group(g);
        add_group(g + 1);
      } else {
        for (int64_t i = g; i < g + per_block; i++) add_group(i);
      }
      for (int i = 0; i < MR; i++) {
        const vf d = set1(at.scales[i][b]);
        for (int t = 0; t < NT; t++) total[t * MR + i] = fma(blk[t * MR + i], d, total[t * MR + i]);
      }
    }
    if (g1 * kGroup == a.K) {  // most go from registers to memory: with a call for each 3 % slower
      if (!store_plain<MR, NT>(a, tile, m0 + m, total)) finish<MR, NT>(a, tile, m0 + m, total);
      return;
    }
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) totals[m + i][t] = total[t * MR + i];
  }
};

// Groups of a panel: whole activation blocks, in panels of about the same size.
KVASIR_INLINE int64_t panel_step(const LinearArgs& a) {
  const int64_t groups = a.K / kGroup, per_block = a.x->block / kGroup;
  const int64_t most = a.m1 - a.m0 < kFewRows && per_block <= kFewGroups ? kFewGroups : kPanelGroups;
  const int64_t panels = (groups + most - 1) / most, blocks = groups / per_block;
  const int64_t step = (blocks + panels - 1) / panels * per_block;
  return step <= most ? step : most / per_block * per_block;
}

template <class F, int NT, class Source>
void panel_rows(const LinearArgs& a, int64_t tile, const Source& source) {
  const int64_t groups = a.K / kGroup, step = panel_step(a), bytes = source.stride;
  const uint8_t* w = source.w;
  for (int64_t m0 = a.m0; m0 < a.m1; m0 += kPanelRows) {
    alignas(64) Panel<DotsOf<F>, NT> panel(a, tile, m0);
    for (int64_t g = 0; g < groups; g += step) {
      const int64_t end = g + step < groups ? g + step : groups;
      // the next groups of these tiles, or the first of the tiles behind them
      const uint8_t* next = end < groups ? w + bytes * end / groups : w + NT * bytes;
      for (int64_t i = g; i < end; i++)
        source.template read<NT>(i, panel.groups[i - g].u, panel.groups[i - g].s);
      panel.run(g, end, {next, next + bytes * step / groups, bytes});
    }
  }
}

// Tiles from `w` on, in F's own layout.
template <class F>
struct PackedTiles {
  const uint8_t* w;
  int64_t stride;

  template <int NT>
  inline __attribute__((always_inline)) void read(int64_t g, Unpacked* u, Scales* s) const {
    IntTile<F>::template read<NT>(w, stride, g, u, s, 0);
  }
};

// Columns of NT tiles from `tile` on, that lie at source.w and source.stride apart. Its read<NT>(g, u, s)
// unpacks group g of those tiles to what F describes. False where an activation block exceeds a panel.
template <class F, int NT, class Source>
bool run_panels(const LinearArgs& a, int64_t tile, const Source& source) {
  if (a.x->block > kPanelGroups * kGroup) return false;
  panel_rows<F, NT>(a, tile, source);
  return true;
}

}  // namespace kvasir::KVASIR_ISA
