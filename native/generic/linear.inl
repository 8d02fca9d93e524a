// The frame that every linear kernel shares: rows in blocks, tiles, epilogues. Include after vec.h and
// math.inl; a format brings `Tile` with
//   static int64_t bytes(int64_t K);                     packed bytes of one tile of 16 columns
//   template <int MR> static void rows(const uint8_t* w, const LinearArgs& a, const int64_t* r, vf* total);
// where r[i] is the input row of total[i]. Row blocking never changes a row's order of operations.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE void store_tile(const LinearArgs& a, int64_t m, int64_t column, int64_t n_columns, vf y) {
  const int64_t left = n_columns - column;
  float* out = a.out + m * a.ldo + column;
  if (left >= kTileCols) {
    if (a.epilogue == Epilogue::add) y = add(y, load(a.residual + m * a.ldo + column));
    store(out, y);
    return;
  }
  if (a.epilogue == Epilogue::add) y = add(y, load_n(a.residual + m * a.ldo + column, int(left)));
  store_n(out, y, int(left));
}

// bias: [n_columns] or null.
KVASIR_INLINE vf add_bias(const float* bias, int64_t column, int64_t n_columns, vf y) {
  if (bias == nullptr) return y;
  const int64_t left = n_columns - column;
  return add(y, left >= kTileCols ? load(bias + column) : load_n(bias + column, int(left)));
}

template <class Tile, int MR>
KVASIR_INLINE void linear_block(const LinearArgs& a, int64_t tile, int64_t m) {
  const int64_t bytes = Tile::bytes(a.K);
  int64_t r[MR];
  for (int i = 0; i < MR; i++) r[i] = a.row_index ? a.row_index[m + i] : m + i;
  vf y[MR];
  Tile::template rows<MR>(a.w + tile * bytes, a, r, y);
  if (a.epilogue != Epilogue::gated) {
    const int64_t column = tile * kTileCols;
    for (int i = 0; i < MR; i++) store_tile(a, m + i, column, a.N, add_bias(a.bias, column, a.N, y[i]));
    return;
  }
  vf up[MR];
  Tile::template rows<MR>(a.w + (tile + 1) * bytes, a, r, up);
  const int64_t column = tile / 2 * kTileCols, half = a.N / 2;
  const float* up_bias = a.bias ? a.bias + half : nullptr;
  for (int i = 0; i < MR; i++) {
    const vf gate = activate(a.act, add_bias(a.bias, column, half, y[i]));
    store_tile(a, m + i, column, half, mul(gate, add_bias(up_bias, column, half, up[i])));
  }
}

template <class Tile>
KVASIR_INLINE void run_linear(const LinearArgs& a) {
  const int64_t step = a.epilogue == Epilogue::gated ? 2 : 1;
  for (int64_t tile = a.tile0; tile < a.tile1; tile += step) {
    int64_t m = a.m0;
    for (; m + Tile::kRows <= a.m1; m += Tile::kRows) linear_block<Tile, Tile::kRows>(a, tile, m);
    if constexpr (Tile::kRows > 4)
      for (; m + 4 <= a.m1; m += 4) linear_block<Tile, 4>(a, tile, m);
    for (; m + 2 <= a.m1; m += 2) linear_block<Tile, 2>(a, tile, m);
    for (; m < a.m1; m++) linear_block<Tile, 1>(a, tile, m);
  }
}

}  // namespace kvasir::KVASIR_ISA
