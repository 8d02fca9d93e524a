// The frame that every linear kernel shares: rows in blocks, tiles, epilogues. Include after vec.h and
// math.inl; a format brings `Tile` with
//   static int64_t bytes(int64_t K);                     packed bytes of one tile of 16 columns
//   template <int MR, int NT> static void rows(const uint8_t* w, const LinearArgs& a, const int64_t* r, vf*
//   total);                                              for NT neighbouring tiles from w on; total[t * MR +
//   i]
//                                                        is of tile t and input row r[i]
//   template <int NT> static bool many(const LinearArgs& a, int64_t tile);
//                                                        all rows of NT tiles at once, or false: has no such
//                                                        way
// kRows: rows of a block where there are many; kPairedRows: most rows that read NT tiles side by side;
// kEight: whether eight rows alone, which are bound by memory, are one block. Row blocking never changes a
// row's order of operations.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

constexpr int64_t kSegment = 256;  // of the float linears

// Asks for kBytes of tile t, `ahead` bytes behind p; w and p are of the first of NT tiles read side by
// side, so what follows the end of a tile is another's: the next bytes wanted lie behind them all. The
// hardware prefetcher of Zen 5 alone stalls with two streams and four rows or more. Fetching some of the
// weights past the cache (prefetchnta), so that others stay from step to step, gained nothing: 88 MB of
// weights, 32 MB of cache, all variants within 1 %.
template <int NT, int kBytes>
KVASIR_INLINE void fetch(const uint8_t* w, const uint8_t* p, int64_t tile_bytes, int t, int32_t ahead) {
  if (ahead == 0) return;
  p += ahead;
  if (p - w >= tile_bytes) p += (NT - 1) * tile_bytes;
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(p + t * tile_bytes + line, 0, 3);
}

// Where the output of row m in a column lies.
KVASIR_INLINE int64_t place(const LinearArgs& a, int64_t m, int64_t column) {
  return (m - a.m0) * a.ldo + column - first_column(a.epilogue, a.tile0);
}

KVASIR_INLINE void store_tile(const LinearArgs& a, int64_t m, int64_t column, int64_t n_columns, vf y) {
  const int64_t left = n_columns - column;
  const int64_t at = place(a, m, column);
  float* out = a.out + at;
  if (left >= kTileCols) {
    if (a.epilogue == Epilogue::add) y = add(y, load(a.residual + at));
    store(out, y);
    return;
  }
  if (a.epilogue == Epilogue::add) y = add(y, load_n(a.residual + at, int(left)));
  store_n(out, y, int(left));
}

// bias: [n_columns] or null.
KVASIR_INLINE vf add_bias(const float* bias, int64_t column, int64_t n_columns, vf y) {
  if (bias == nullptr) return y;
  const int64_t left = n_columns - column;
  return add(y, left >= kTileCols ? load(bias + column) : load_n(bias + column, int(left)));
}

// y: gate rows, then up rows, of one pair of tiles.
template <int MR>
KVASIR_INLINE void store_gated(const LinearArgs& a, int64_t column, int64_t m, const vf* y) {
  const int64_t half = a.N / 2;
  const float* up_bias = a.bias ? a.bias + half : nullptr;
  for (int i = 0; i < MR; i++) {
    const vf gate = add_bias(a.bias, column, half, y[i]);
    store_tile(a, m + i, column, half, gated(a.act, gate, add_bias(up_bias, column, half, y[MR + i])));
  }
}

// y: sums of MR rows from m on, tile by tile. False, and nothing done, where an activation or a bias is still
// to come, or a tile has columns past N.
template <int MR, int NT>
KVASIR_INLINE bool store_plain(const LinearArgs& a, int64_t tile, int64_t m, const vf* y) {
  const int64_t column = tile * kTileCols;
  if (activates(a.epilogue) || a.bias || column + NT * kTileCols > a.N) return false;
  for (int i = 0; i < MR; i++)
    for (int t = 0; t < NT; t++) {
      const int64_t at = place(a, m + i, column) + t * kTileCols;
      const vf sum = y[t * MR + i];
      store(a.out + at, a.epilogue == Epilogue::add ? add(sum, load(a.residual + at)) : sum);
    }
  return true;
}

// As store_plain, for any outputs. A call: its activations would be compiled into every format.
template <int MR, int NT>
__attribute__((noinline)) void finish(const LinearArgs& a, int64_t tile, int64_t m, const vf* y) {
  if (store_plain<MR, NT>(a, tile, m, y)) return;
  if (a.epilogue == Epilogue::gated) {
    if constexpr (NT == 2) store_gated<MR>(a, tile / 2 * kTileCols, m, y);
    return;
  }
  const Act act = a.epilogue == Epilogue::act ? a.act : Act::none;
  for (int t = 0; t < NT; t++) {
    const int64_t column = (tile + t) * kTileCols;
    for (int i = 0; i < MR; i++)
      store_tile(a, m + i, column, a.N, activate(act, add_bias(a.bias, column, a.N, y[t * MR + i])));
  }
}

// The input rows of output rows m .. m + n.
KVASIR_INLINE void row_indices(const LinearArgs& a, int64_t m, int n, int64_t* r) {
  for (int i = 0; i < n; i++) r[i] = a.row_index ? a.row_index[m + i] : m + i;
}

// A call, for what is seldom taken: inlined where it is used it would be compiled several times into every
// format (a file of linears took 55 s where it takes 30).
template <class Tile, int MR, int NT>
__attribute__((noinline)) void rows_apart(const uint8_t* w, const LinearArgs& a, const int64_t* r, vf* y) {
  Tile::template rows<MR, NT>(w, a, r, y);
}

template <class Tile, int MR, int NT>
KVASIR_INLINE void linear_block(const LinearArgs& a, int64_t tile, int64_t m) {
  int64_t r[MR];
  row_indices(a, m, MR, r);
  vf y[MR * NT];
  const int64_t bytes = Tile::bytes(a.K);
  // one or two rows are bound by memory: one stream at a time, unless the shape says otherwise
  constexpr bool kPairs = MR > 2;
  if constexpr (NT == 2 && MR <= Tile::kPairedRows)
    if (a.shape.tiles ? a.shape.tiles == 2 : kPairs) {
      if constexpr (kPairs)
        Tile::template rows<MR, 2>(a.w + tile * bytes, a, r, y);
      else
        rows_apart<Tile, MR, 2>(a.w + tile * bytes, a, r, y);
      return finish<MR, 2>(a, tile, m, y);
    }
  for (int t = 0; t < NT; t++)
    if constexpr (NT == 2 && !kPairs)
      Tile::template rows<MR, 1>(a.w + (tile + t) * bytes, a, r, y + t * MR);
    else
      rows_apart<Tile, MR, 1>(a.w + (tile + t) * bytes, a, r, y + t * MR);
  finish<MR, NT>(a, tile, m, y);
}

template <class Tile, int NT>
KVASIR_INLINE void linear_tiles(const LinearArgs& a, int64_t tile) {
  int64_t m = a.m0;
  if (a.m1 - m >= a.shape.panel_rows && Tile::template many<NT>(a, tile)) return;
  if constexpr (Tile::kRows > 2) {
    const bool in_eights = Tile::kRows == 8 || (Tile::kEight && a.m1 - m < kManyRows);
    if (a.shape.block == 0 ? in_eights : a.shape.block == 8)  // one pass over the weights
      for (; m + 8 <= a.m1; m += 8) linear_block<Tile, 8, NT>(a, tile, m);
    for (; m + 4 <= a.m1; m += 4) linear_block<Tile, 4, NT>(a, tile, m);
    if (m + 3 == a.m1) return linear_block<Tile, 3, NT>(a, tile, m);  // two and one unpack the weights twice
  }
  for (; m + 2 <= a.m1; m += 2) linear_block<Tile, 2, NT>(a, tile, m);
  for (; m < a.m1; m++) linear_block<Tile, 1, NT>(a, tile, m);
}

// Two tiles at a time: a gate and its up, or two neighbours.
template <class Tile>
KVASIR_INLINE void run_linear(const LinearArgs& a) {
  int64_t tile = a.tile0;
  for (; tile + 2 <= a.tile1; tile += 2) linear_tiles<Tile, 2>(a, tile);
  if (tile < a.tile1) linear_tiles<Tile, 1>(a, tile);
}

}  // namespace kvasir::KVASIR_ISA
