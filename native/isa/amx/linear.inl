// Integer linears of many rows on tiles. A group's codes, four k of 16 columns in 64 bytes, are the rows of a
// tile already; signed and centred they need no correction by the rows' sums. A tile of 16 rows of
// activations meets a tile of weights over the 32 (or 16) k that share a scale, and leaves 16 x 16 exact
// dots; the floats above them are those of IntTile::rows, in its order. Include after tiles.h; fewer rows are
// the level below's.
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kIntRows = 4;
constexpr int kQ8Zero = 0;
constexpr bool kCentred = false;  // unpacked codes; TilePanel subtracts
constexpr bool kDotsAskBits = false, kPanels = true;

}  // namespace kvasir::KVASIR_ISA

#include "isa/avx512/unpack.inl"
//
#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/linear_int.inl"
#include "generic/linear_panel.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kTileRows = 16;
constexpr int kDots = 0, kInputs = 2, kWeights = 3;  // tiles: of each column tile dots and weights

// Rows [m0, m1), groups [g0, g1).
struct Part {
  int64_t m0, m1, g0, g1;
};

// A panel of weights as linear_panel.inl has it, for tiles.
template <class F, int NT>
struct TilePanel {
  using Format = IntTile<F>;
  static constexpr int kDepth = kGroup / F::kRuns;  // k of one dot

  alignas(64) int8_t weights[kPanelGroups][NT][kGroup * kTileCols];
  Scales scales[kPanelGroups][NT];
  vf totals[kPanelRows][NT];
  // of the groups of one activation block
  alignas(64) int32_t dots[kPanelGroups][F::kRuns][NT][kTileRows][kTileCols];
  alignas(64) int8_t gathered[kTileRows][kPanelGroups * kGroup];

  // Rows of activations, from the panel's first k on.
  struct Inputs {
    const int8_t* at;
    int64_t stride;
  };

  static TileShapes shapes() {
    TileShapes s;
    const auto shape = [&s](int tile, int rows, int bytes) {
      s.rows[tile] = uint8_t(rows);
      s.row_bytes[tile] = uint16_t(bytes);
    };
    shape(kInputs, kTileRows, kDepth);
    for (int t = 0; t < NT; t++) {
      shape(kDots + t, kTileRows, 4 * kTileCols);
      shape(kWeights + t, kDepth / 4, 4 * kTileCols);
    }
    return s;
  }

  inline __attribute__((always_inline)) void unpack(const LinearArgs& a, const uint8_t* w, const Part& p) {
    for (int64_t g = p.g0; g < p.g1; g++) {
      Unpacked u[NT];
      Format::template read<NT>(w, Format::bytes(a.K), g, u, scales[g - p.g0], a.shape.ahead);
      for (int t = 0; t < NT; t++)
        for (int j = 0; j < 8; j++)
          _mm512_store_si512(weights[g - p.g0][t] + 64 * j,
                             _mm512_sub_epi8(u[t].w[j], _mm512_set1_epi8(F::kZero)));
    }
  }

  // Rows [m, m + n). Those that do not lie one behind the other, or are less than a tile, are copied.
  inline __attribute__((always_inline)) Inputs inputs(const LinearArgs& a, int64_t m, int n, const Part& p) {
    const int8_t* x = static_cast<const int8_t*>(a.x->data) + p.g0 * kGroup;
    if (n == kTileRows && a.row_index == nullptr) return {x + m * a.x->ld, a.x->ld};
    int64_t r[kTileRows];
    row_indices(a, m, n, r);
    const int64_t bytes = (p.g1 - p.g0) * kGroup;
    for (int i = 0; i < kTileRows; i++) {
      if (i < n)
        __builtin_memcpy(gathered[i], x + r[i] * a.x->ld, size_t(bytes));
      else
        __builtin_memset(gathered[i], 0, size_t(bytes));
    }
    return {gathered[0], kPanelGroups * kGroup};
  }

  // Column tile T of one run of a group, whose inputs are loaded.
  template <int T>
  inline __attribute__((always_inline)) void dot(const int8_t* w, int32_t* out) {
    tile_load<kWeights + T>(w, 4 * kTileCols);
    tile_zero<kDots + T>();
    tile_dot<kDots + T, kInputs, kWeights + T>();
    tile_store<kDots + T>(out, 4 * kTileCols);
  }

  // All dots of groups [g0, g1) of the panel.
  inline __attribute__((always_inline)) void dot_groups(const Inputs& x, int64_t g0, int64_t g1) {
    for (int64_t g = g0; g < g1; g++)
      for (int r = 0; r < F::kRuns; r++) {
        const int64_t k = r * kDepth;
        tile_load<kInputs>(x.at + g * kGroup + k, x.stride);
        dot<0>(weights[g][0] + k * kTileCols, dots[g - g0][r][0][0]);
        if constexpr (NT == 2) dot<1>(weights[g][1] + k * kTileCols, dots[g - g0][r][1][0]);
      }
  }

  // Rows m + row .. of a block of rows at m: activation block b, groups [g0, g1) of the panel.
  template <int MR>
  inline __attribute__((always_inline)) void add_block(const LinearArgs& a, int64_t m, int row, const Part& p,
                                                       int64_t b, int64_t g0, int64_t g1) {
    int64_t r[MR];
    row_indices(a, m + row, MR, r);
    const RowsAt<MR> x(a, r);
    vf blk[NT][MR];
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < MR; i++) blk[t][i] = zero();
    for (int64_t g = g0; g < g1; g++) {
      for (int h = 0; h < F::kRuns; h++)
        for (int t = 0; t < NT; t++)
          for (int i = 0; i < MR; i++) {
            const vf dot = to_float(loadi(dots[g - g0][h][t][row + i]));
            blk[t][i] = fma(dot, scales[g][t].scale[h], blk[t][i]);
            if constexpr (F::kMins) {
              const float sum = float(int32_t(run_sum<F::kRuns>(x.sums[i] + 2 * (p.g0 + g), h)));
              blk[t][i] = fma(scales[g][t].min[h], set1(sum), blk[t][i]);
            }
          }
    }
    vf(*total)[NT] = totals + (m - p.m0) + row;
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++)
        total[i][t] = fma(blk[t][i], set1(x.scales[i][b]), b == 0 ? zero() : total[i][t]);
  }

  template <int MR>
  inline __attribute__((always_inline)) void store(const LinearArgs& a, int64_t tile, int64_t m,
                                                   const Part& p) {
    vf y[MR * NT];
    for (int i = 0; i < MR; i++)
      for (int t = 0; t < NT; t++) y[t * MR + i] = totals[m - p.m0 + i][t];
    finish<MR, NT>(a, tile, m, y);
  }

  inline __attribute__((always_inline)) void rows(const LinearArgs& a, int64_t tile, int64_t m, int n,
                                                  const Part& p) {
    const Inputs x = inputs(a, m, n, p);
    const int64_t per_block = a.x->block / kGroup;
    for (int64_t g = 0; g < p.g1 - p.g0; g += per_block) {
      dot_groups(x, g, g + per_block);
      const int64_t b = (p.g0 + g) / per_block;
      int i = 0;
      for (; i + kIntRows <= n; i += kIntRows) add_block<kIntRows>(a, m, i, p, b, g, g + per_block);
      for (; i < n; i++) add_block<1>(a, m, i, p, b, g, g + per_block);
    }
    if (p.g1 * kGroup < a.K) return;
    int i = 0;
    for (; i + kIntRows <= n; i += kIntRows) store<kIntRows>(a, tile, m + i, p);
    for (; i < n; i++) store<1>(a, tile, m + i, p);
  }
};

template <class F, int NT>
void run_tile_panels(const LinearArgs& a, int64_t tile) {
  const Tiles tiles(TilePanel<F, NT>::shapes());
  const int64_t groups = a.K / kGroup, step = panel_step(a);
  TilePanel<F, NT> panel;
  const uint8_t* w = a.w + tile * IntTile<F>::bytes(a.K);
  for (int64_t m0 = a.m0; m0 < a.m1; m0 += kPanelRows)
    for (int64_t g = 0; g < groups; g += step) {
      const int64_t m1 = m0 + kPanelRows < a.m1 ? m0 + kPanelRows : a.m1;
      const Part part{m0, m1, g, g + step < groups ? g + step : groups};
      panel.unpack(a, w, part);
      for (int64_t m = m0; m < m1; m += kTileRows)
        panel.rows(a, tile, m, m1 - m < kTileRows ? int(m1 - m) : kTileRows, part);
    }
}

}  // namespace kvasir::KVASIR_ISA

namespace kvasir::isa_avx512_vnni {
void linear_integer(const LinearArgs& a);
}  // namespace kvasir::isa_avx512_vnni

namespace kvasir::KVASIR_ISA {

template <class F>
void linear_on_tiles(const LinearArgs& a) {
  if (a.m1 - a.m0 < kManyRows || a.x->block > kPanelGroups * kGroup)
    return isa_avx512_vnni::linear_integer(a);
  int64_t tile = a.tile0;
  for (; tile + 2 <= a.tile1; tile += 2) run_tile_panels<F, 2>(a, tile);
  if (tile < a.tile1) run_tile_panels<F, 1>(a, tile);
}

template <class... F>
void set_on_tiles(Kernels& k) {
  ((k.linear[int(Form::usual)][int(F::kLayout)] = linear_on_tiles<F>), ...);
}

// The compact layouts stay with the level below.
void fill_integer_linears(Kernels& k) {
  set_on_tiles<FormatQ4m, FormatQ4z, FormatQ8, FormatQ4k, FormatQ5k, FormatQ6k, FormatQ5z, FormatQ5m,
               FormatIq4, FormatQ8x<false>, FormatQ8x<true>>(k);
}

}  // namespace kvasir::KVASIR_ISA
