// Integer linears that hold weights in registers: the two groups of an activation block of one tile are
// unpacked once, to sixteen of them, and meet row after row there. What a row takes from memory are
// broadcasts of its own bytes, two a cycle; a panel (generic/linear_panel.inl) also loads its weights, one
// register a cycle, and eight rows of two tiles side by side leave no registers for sums. Zen 4 starts one
// 512-bit instruction that multiplies a cycle, of whatever kind, so that a block of 64 of a row and a tile
// takes 19 cycles with one scale a group, 21 with mins or two scales. Two rows at a time, whose chains of
// dots overlap, take 21 to 23 of many rows and, with unpacking, 21 (Q4_0, Q8_0), 23 (Q4_1), 24 (Q4_K) and 27
// (Q6_K) of eight; the usual kernels 25 to 36 of eight. The order of operations is that of IntTile::rows.
#pragma once
#include "generic/linear_int.inl"

namespace kvasir::isa_avx512_vnni {

constexpr int kHeldRows = 128;    // of one pass over a tile
constexpr int kHeldGroups = 2;    // of the activation block
constexpr int kStarts = 1 << 14;  // of one pass: 64 KB, two for each group of a row

// Where the dots of all runs begin, as the sums of the rows lie: computed once for some rows and two tiles,
// broadcast from memory for each dot.
template <class F>
KVASIR_INLINE void find_starts(const RowsAt<kHeldRows>& x, int n, int64_t n_sums, int32_t* starts) {
  static_assert((F::kZero & (F::kZero - 1)) == 0);
  for (int i = 0; i < n; i++)
    for (int64_t at = 0; at < n_sums; at += kLanes) {
      const vm lanes = first(int(n_sums - at));
      vi sums = _mm512_maskz_loadu_epi32(lanes, x.sums[i] + at);
      if constexpr (F::kRuns == 2) {  // of the first run, then of the second
        const vi swapped = _mm512_shuffle_epi32(sums, _MM_PERM_CDAB);
        sums = _mm512_mask_sub_epi32(swapped, 0xaaaa, swapped, sums);
      }
      const vi start = subi(_mm512_setzero_si512(), shl<__builtin_ctz(F::kZero | 1 << 30)>(sums));
      _mm512_mask_storeu_epi32(starts + i * n_sums + at, lanes, start);
    }
}

// Weights of one tile and activation block.
struct Held {
  Unpacked u[kHeldGroups];
  Scales s[kHeldGroups];
};

// Of a group's sums that of one run, in all lanes.
template <class F>
KVASIR_INLINE vf run_sums(const int32_t* of_group, int run) {
  if (F::kRuns == 1) return to_float(set1i(of_group[0]));
  return to_float(run == 0 ? set1i(of_group[1]) : subi(set1i(of_group[0]), set1i(of_group[1])));
}

// Block b of rows m … m + MR; starts: theirs, n_sums apart.
template <class F, int MR>
KVASIR_INLINE void held_rows(const Held& h, const RowsAt<kHeldRows>& x, const int32_t* starts, int64_t n_sums,
                             int64_t b, int64_t m, vf* total) {
  constexpr int kLength = 8 / F::kRuns;
  const int8_t* q[MR];
  vi d[MR][kHeldGroups][F::kRuns];
  for (int i = 0; i < MR; i++) {
    q[i] = x.q[m + i] + b * kHeldGroups * kGroup;
    const int32_t* start = starts + (m + i) * n_sums + b * kHeldGroups * 2;
    for (int g = 0; g < kHeldGroups; g++)
      for (int r = 0; r < F::kRuns; r++)
        d[i][g][r] = F::kZero ? set1i(start[2 * g + r]) : _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int j = 0; j < kLength; j++)
    for (int i = 0; i < MR; i++)
      for (int g = 0; g < kHeldGroups; g++)
        for (int r = 0; r < F::kRuns; r++) {
          const int at = r * kLength + j;
          const vi four = set1i(*reinterpret_cast<const int32_t*>(q[i] + g * kGroup + 4 * at));
          d[i][g][r] = _mm512_dpbusd_epi32(d[i][g][r], h.u[g].w[at], four);
        }
  for (int i = 0; i < MR; i++) {
    const int32_t* sums = x.sums[m + i] + b * kHeldGroups * 2;
    vf blk = zero();
    for (int g = 0; g < kHeldGroups; g++)
      for (int r = 0; r < F::kRuns; r++) {
        blk = fma(to_float(d[i][g][r]), h.s[g].scale[r], blk);
        if constexpr (F::kMins) blk = fma(h.s[g].min[r], run_sums<F>(sums + 2 * g, r), blk);
      }
    total[m + i] = fma(blk, set1(x.scales[m + i][b]), total[m + i]);
  }
}

// Asks for the bytes of a block, `ahead` of where they are read; to the second cache: the first has lines for
// two dozen on their way, which eight rows of Q8_0 wait for a quarter of their time.
KVASIR_INLINE void fetch_held(const uint8_t* p, int64_t bytes, int32_t ahead) {
  if (ahead == 0) return;
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(p + ahead + line, 0, 2);
}

// All blocks of the tile at w, for n rows.
template <class F>
KVASIR_INLINE void held_tile(const LinearArgs& a, const uint8_t* w, const RowsAt<kHeldRows>& x, int n,
                             const int32_t* starts, vf* total) {
  using Tile = IntTile<F>;
  const int64_t groups = a.K / kGroup;
  for (int i = 0; i < n; i++) total[i] = zero();
  for (int64_t b = 0; b * kHeldGroups < groups; b++) {
    const int64_t g = b * kHeldGroups;
    fetch_held(w + g * Tile::kBlock / Tile::kGroups, kHeldGroups * Tile::kBlock / Tile::kGroups,
               a.shape.ahead);
    Held h;
    for (int k = 0; k < kHeldGroups; k++) Tile::template read<1>(w, 0, g + k, h.u + k, h.s + k, 0);
    int i = 0;
    for (; i + 2 <= n; i += 2) held_rows<F, 2>(h, x, starts, groups * 2, b, i, total);
    if (i < n) held_rows<F, 1>(h, x, starts, groups * 2, b, i, total);
  }
}

// Sums of MR rows from row i on, tile by tile, to their places.
template <int MR, int NT>
KVASIR_INLINE void store_held(const LinearArgs& a, int64_t tile, int64_t m, int i,
                              const vf (*total)[kHeldRows]) {
  vf y[MR * NT];
  for (int t = 0; t < NT; t++)
    for (int k = 0; k < MR; k++) y[t * MR + k] = total[t][i + k];
  if (!store_plain<MR, NT>(a, tile, m + i, y)) finish<MR, NT>(a, tile, m + i, y);
}

// All rows of NT tiles: a gate and its up, or two neighbours, one after the other.
template <class F, int NT>
__attribute__((noinline)) void held_tiles(const LinearArgs& a, int64_t tile) {
  const int64_t bytes = IntTile<F>::bytes(a.K), n_sums = a.K / kGroup * 2;
  const int64_t most = F::kZero && kStarts / n_sums < kHeldRows ? kStarts / n_sums : kHeldRows;
  vf total[NT][kHeldRows];
  alignas(64) int32_t starts[F::kZero ? kStarts : 1];
  for (int64_t m = a.m0; m < a.m1; m += most) {
    const int n = int(a.m1 - m < most ? a.m1 - m : most);
    int64_t r[kHeldRows];
    row_indices(a, m, n, r);
    const RowsAt<kHeldRows> x(a, r, n);
    if constexpr (F::kZero) find_starts<F>(x, n, n_sums, starts);
    for (int t = 0; t < NT; t++) held_tile<F>(a, a.w + (tile + t) * bytes, x, n, starts, total[t]);
    int i = 0;
    for (; i + kIntRows <= n; i += kIntRows) store_held<kIntRows, NT>(a, tile, m, i, total);
    for (; i < n; i++) store_held<1, NT>(a, tile, m, i, total);
  }
}

template <class F>
void linear_held(const LinearArgs& a) {
  if (a.x->block != kHeldGroups * kGroup || a.K > kStarts / 2 * kGroup) return linear_integer(a);
  int64_t tile = a.tile0;
  for (; tile + 2 <= a.tile1; tile += 2) held_tiles<F, 2>(a, tile);
  if (tile < a.tile1) held_tiles<F, 1>(a, tile);
}

}  // namespace kvasir::isa_avx512_vnni
