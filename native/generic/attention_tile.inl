// One tile of 64 logical positions against one block of query vectors. Include after vec.h.
//
// Exact arithmetic of a query vector with visible positions [begin, end) of the tile (never empty here):
//   s[j] = fma(q[d], k[d][j], s[j]), d ascending from s = 0;  s[j] = s[j] * (scale of K's head j, if any),
//   then * scale, then softcap;  -inf if j is not visible
//   m'   = max(m, max_j s[j]);  c = exp(m - m');  p[j] = exp(s[j] - m'), exactly 0 where not visible
//   l    = l * c, then + p of subtile 0, 1, 2, 3, on 16 lanes (lane = position mod 16)
//   o[d] = o[d] * c, then fma(p[j], v[j][d], o[d]) for the visible j ascending, with p[j] = p[j] * (scale of
//   V's head j, if any)
// Positions that are not visible are left out of o, not multiplied by zero: their V may not have been
// written.
#pragma once
#include "generic/kv.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kSubs = kAttnTile / kSub;

// Of K and V at the positions of a tile; null where the type of the cache has none.
struct Scales {
  const float *k, *v;  // [64]
};

// The tile's subtiles; those outside of what the item can see are not set.
template <class T>
struct Tile {
  const T* k[kSubs];
  const T* v[kSubs];
  // Where the same subtiles of the next tile lie; fetched meanwhile, because pages lie anywhere and what
  // fetches ahead by itself stops at their ends. The tile itself where there is none.
  const T* next_k[kSubs];
  const T* next_v[kSubs];
  Scales scales;
};

// Query vectors of one block. [begin, end): visible positions of the current tile.
struct Block {
  const float* q[kBlockRows];
  float* o[kBlockRows];
  float* l[kBlockRows];
  float* m[kBlockRows];
  int begin[kBlockRows], end[kBlockRows];
  float c[kBlockRows];
  float* s;  // [rows][64] scores, then probabilities
};

struct ScoreRule {
  int head_dim;
  float scale, softcap;
};

constexpr int kCacheLine = 64;

// acc[r][c] = fma(a[r][i], b[c][i * stride ...], acc[r][c]) for i ascending; fetches what lies at `next` as b
// lies at b, but not for f32: such tiles mostly lie in the scratch, widened for many query vectors.
// kSideBySide: the columns c are neighbours in memory, else the steps i are.
template <bool kSideBySide, int R, int C, class T>
KVASIR_INLINE void outer(const float* const* a, const T* const* b, const T* const* next, int64_t stride,
                         int n, vf (&acc)[R][C]) {
  constexpr bool kFetches = sizeof(T) < sizeof(float);
  constexpr int kPerLine = kCacheLine / int(sizeof(T) * 16);
  for (int i = 0; i < n; i++) {
    vf column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      if (kFetches && (kSideBySide ? c : i) % kPerLine == 0) __builtin_prefetch(next[c] + i * stride);
      column[c] = load_kv(b[c] + i * stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const vf x = set1(a[r][i]);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) acc[r][c] = fma(x, column[c], acc[r][c]);
    }
  }
}

template <int R, int C, class T>
KVASIR_INLINE void score_subs(const Block& block, const Tile<T>& tile, int head_dim, int sub) {
  vf acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[r][c] = zero();
  outer<false, R, C>(block.q, tile.k + sub, tile.next_k + sub, kSub, head_dim, acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(block.s + r * kAttnTile + (sub + c) * kSub, acc[r][c]);
}

// Dot products of the subtiles [sub, last), C at a time, then fewer.
template <int R, int C, class T>
KVASIR_INLINE void score_range(const Block& block, const Tile<T>& tile, int head_dim, int sub, int last) {
  for (; sub + C <= last; sub += C) score_subs<R, C>(block, tile, head_dim, sub);
  if constexpr (C > 1) score_range<R, C / 2>(block, tile, head_dim, sub, last);
}

// Columns of o: o = o * scale + sum of p v over the positions [begin, end) of the tile, for R query vectors.
template <int R, int C, class T>
KVASIR_INLINE void mix_columns(float* const* o, const float* scale, const float* const* p,
                               const Tile<T>& tile, int head_dim, int column, int begin, int end) {
  vf acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[r][c] = mul(load(o[r] + column + c * 16), set1(scale[r]));
  for (int j = begin; j < end;) {
    const int sub = j / kSub, stop = (sub + 1) * kSub < end ? (sub + 1) * kSub : end;
    const float* a[R];
    const T *b[C], *next[C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) a[r] = p[r] + j;
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      const int64_t at = int64_t(j % kSub) * head_dim + column + c * 16;
      b[c] = tile.v[sub] + at;
      next[c] = tile.next_v[sub] + at;
    }
    outer<true, R, C>(a, b, next, head_dim, stop - j, acc);
    j = stop;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(o[r] + column + c * 16, acc[r][c]);
}

template <int R, int C, class T>
KVASIR_INLINE void mix(float* const* o, const float* scale, const float* const* p, const Tile<T>& tile,
                       int head_dim, int column, int begin, int end) {
  for (; column + C * 16 <= head_dim; column += C * 16)
    mix_columns<R, C>(o, scale, p, tile, head_dim, column, begin, end);
  if constexpr (C > 1) mix<R, C / 2>(o, scale, p, tile, head_dim, column, begin, end);
}

// Scores of one query vector to probabilities; updates m and l, returns the factor of o.
KVASIR_INLINE float soften(float* s, float* m, float* l, int begin, int end, const Scales& scales,
                           const ScoreRule& rule) {
  const vf lowest = set1(-__builtin_inff()), scale = set1(rule.scale), cap = set1(rule.softcap);
  const int first_sub = begin / kSub, last_sub = (end + kSub - 1) / kSub;
  vf top = lowest;
  for (int i = first_sub; i < last_sub; i++) {
    vf x = load(s + i * kSub);
    if (scales.k) x = mul(x, load(scales.k + i * kSub));
    x = mul(x, scale);
    if (rule.softcap > 0.0f) x = softcap(x, cap);
    x = select(range(begin - i * kSub, end - i * kSub), x, lowest);
    top = vmax(x, top);
    store(s + i * kSub, x);
  }
  const float most = reduce_max(top), before = *m;
  const float now = before > most ? before : most;
  const vf c = exp_bounded(set1(before - now)), shift = set1(now);
  vf sum = mul(load(l), c);
  for (int i = first_sub; i < last_sub; i++) {
    const vf p = exp_bounded(sub(load(s + i * kSub), shift));
    store(s + i * kSub, scales.v ? mul(p, load(scales.v + i * kSub)) : p);
    sum = add(sum, p);
  }
  store(l, sum);
  *m = now;
  float factor[16];
  store(factor, c);
  return factor[0];
}

// The positions visible to all R query vectors are mixed together, what comes before and after one by one:
// the order of each stays ascending.
template <int R, class T>
KVASIR_INLINE void mix_block(Block& block, const Tile<T>& tile, int head_dim) {
  int begin = block.begin[0], end = block.end[0];
  const float* p[R];
  for (int r = 0; r < R; r++) {
    begin = block.begin[r] > begin ? block.begin[r] : begin;
    end = block.end[r] < end ? block.end[r] : end;
    p[r] = block.s + r * kAttnTile;
  }
  if (begin > end) begin = end = 0;
  const bool together = begin < end;
  for (int r = 0; r < R; r++) {
    const int stop = together ? begin : block.end[r];
    if (block.begin[r] >= stop) continue;
    mix<1, kBlockCols>(block.o + r, block.c + r, p + r, tile, head_dim, 0, block.begin[r], stop);
    block.c[r] = 1.0f;
  }
  if (!together) return;
  mix<R, kBlockCols>(block.o, block.c, p, tile, head_dim, 0, begin, end);
  const float one = 1.0f;
  for (int r = 0; r < R; r++)
    if (end < block.end[r])
      mix<1, kBlockCols>(block.o + r, &one, p + r, tile, head_dim, 0, end, block.end[r]);
}

template <int R, class T>
static void attend_rows(Block& block, const Tile<T>& tile, const ScoreRule& rule) {
  int begin = kAttnTile, end = 0;
  for (int r = 0; r < R; r++) {
    if (block.begin[r] >= block.end[r]) continue;
    begin = block.begin[r] < begin ? block.begin[r] : begin;
    end = block.end[r] > end ? block.end[r] : end;
  }
  if (begin >= end) return;
  score_range<R, kBlockCols>(block, tile, rule.head_dim, begin / kSub, (end + kSub - 1) / kSub);
  for (int r = 0; r < R; r++)
    if (block.begin[r] < block.end[r])
      block.c[r] = soften(block.s + r * kAttnTile, block.m[r], block.l[r], block.begin[r], block.end[r],
                          tile.scales, rule);
  mix_block<R>(block, tile, rule.head_dim);
}

template <int R, class T>
KVASIR_INLINE void attend_block(Block& block, int rows, const Tile<T>& tile, const ScoreRule& rule) {
  if (rows == R) {
    attend_rows<R>(block, tile, rule);
  } else if constexpr (R > 1) {
    attend_block<R - 1>(block, rows, tile, rule);
  }
}

}  // namespace kvasir::KVASIR_ISA
