// One tile of 64 logical positions against one block of query vectors. Include after vec.h and what the level
// knows about pairs (pair_floats.inl, or its own).
//
// Exact arithmetic of a query vector with visible positions [begin, end) of the tile (never empty here), for
// caches of bf16 and smaller types, with q and p rounded to bf16 and subnormals flushed:
//   s[j] = fma(q[d+1], k[d+1][j], s[j]), then fma(q[d], k[d][j], s[j]), d = 0, 2, 4 ... from s = 0;
//   s[j] = s[j] * (scale of K's head j, if any), then * scale, then softcap;  -inf if j is not visible
//   m'   = max(m, max_j s[j]);  c = exp(m - m');  p[j] = exp(s[j] - m'), exactly 0 where not visible
//   l    = l * c, then + p of subtile 0, 1, 2, 3, on 16 lanes (lane = position mod 16), before p is rounded
//   p[j] = p[j] * (scale of V's head j, if any), rounded
//   o[d] = o[d] * c, then fma(p[j+1], v[j+1][d], o[d]) and fma(p[j], v[j][d], o[d]) for the pairs (j, j + 1)
//   with a visible position, j = 0, 2, 4 ...; the factors of the one that is not visible are zero
// For caches of f32 nothing is rounded, and both sums run in ascending order over single places.
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

// How products with elements T are summed. kColumns: elements from 16 columns of a row of V to the next 16.
template <class T>
struct Sum {
  using Factor = Rounded;
  static constexpr bool kPairs = true, kFetches = true;
  static constexpr int kColumns = 16;
};
template <>
struct Sum<Packed> {  // lies in the scratch
  using Factor = Rounded;
  static constexpr bool kPairs = true, kFetches = false;
  static constexpr int kColumns = kPackedColumns;
};
template <>
struct Sum<float> {
  using Factor = float;
  static constexpr bool kPairs = false, kFetches = true;
  static constexpr int kColumns = 16;
};
template <class T>
using Factor = typename Sum<T>::Factor;  // the left ones

// Query vectors of one block. [begin, end): visible positions of the current tile.
template <class T>
struct Block {
  const Factor<T>* q[kBlockRows];
  float* o[kBlockRows];
  float* l[kBlockRows];
  float* m[kBlockRows];
  int begin[kBlockRows], end[kBlockRows];
  float c[kBlockRows];
  float* s;  // [rows][64] scores, then their probabilities as factors of V
};

struct ScoreRule {
  int head_dim;
  float scale, softcap;
};

constexpr int kCacheLine = 64;

// Left factors of V of neighbouring query vectors lie so far apart: they are in the place of the scores.
template <class T>
constexpr int kFactorRow = kAttnTile * int(sizeof(float) / sizeof(Factor<T>));

// Two ways to sum. Down: over d, q k; query vectors and subtiles lie anywhere, the rows d of a subtile 16
// apart. Across: over positions, p v; what belongs to other query vectors or columns lies at fixed distances
// from the first, which keeps addresses out of the registers that the loops need.
template <class T>
struct Down {
  static constexpr bool kNeighbours = true;  // rows of an even place and of the place after it
  static const T* right(const T* const* b, int64_t, int i, int c) { return b[c] + i * kSub; }
  static const Factor<T>* left(const Factor<T>* const* a, int i, int r) { return a[r] + i; }
};
template <class T>
struct Across {
  static constexpr bool kNeighbours = false;
  static const T* right(const T* const* b, int64_t stride, int i, int c) {
    return b[0] + i * stride + c * Sum<T>::kColumns;
  }
  static const Factor<T>* left(const Factor<T>* const* a, int i, int r) {
    return a[0] + r * kFactorRow<T> + i;
  }
};

// Fetches row i of what comes after b, once a cache line.
template <class Way, class T>
KVASIR_INLINE void fetch(const T* const* next, int64_t stride, int i, int c) {
  constexpr int kPerLine = kCacheLine / int(sizeof(T) * 16);
  if (Sum<T>::kFetches && (Way::kNeighbours ? i : c) % kPerLine == 0)
    __builtin_prefetch(Way::right(next, stride, i, c));
}

// acc[r][c] = fma(a[r][i], b[c][i], acc[r][c]) for i ascending; fetches what lies at `next` as b lies at b.
template <class Way, int R, int C>
KVASIR_INLINE void outer_single(const float* const* a, const float* const* b, const float* const* next,
                                int64_t stride, int n, vf (&acc)[R][C]) {
  for (int i = 0; i < n; i++) {
    vf column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      fetch<Way>(next, stride, i, c);
      column[c] = load(Way::right(b, stride, i, c));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const vf x = set1(*Way::left(a, i, r));
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) acc[r][c] = fma(x, column[c], acc[r][c]);
    }
  }
}

// The same by pairs of places; n is even.
template <class Way, int R, int C, class T>
KVASIR_INLINE void outer_pairs(const Rounded* const* a, const T* const* b, const T* const* next,
                               int64_t stride, int n, vf (&acc)[R][C]) {
  for (int i = 0; i < n; i += 2) {
    Pair column[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      fetch<Way>(next, stride, i, c);
      if (!Way::kNeighbours) fetch<Way>(next, stride, i + 1, c);
      const T* low = Way::right(b, stride, i, c);
      column[c] = Way::kNeighbours ? load_neighbours(low) : load_pair(low, low + stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) acc[r][c] = pair_dot(acc[r][c], Way::left(a, i, r), column[c]);
  }
}

template <template <class> class Way, int R, int C, class T>
KVASIR_INLINE void outer(const Factor<T>* const* a, const T* const* b, const T* const* next, int64_t stride,
                         int n, vf (&acc)[R][C]) {
  if constexpr (Sum<T>::kPairs) {
    outer_pairs<Way<T>, R, C>(a, b, next, stride, n, acc);
  } else {
    outer_single<Way<T>, R, C>(a, b, next, stride, n, acc);
  }
}

template <int R, int C, class T>
KVASIR_INLINE void score_subs(const Block<T>& block, const Tile<T>& tile, int head_dim, int sub) {
  vf acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[r][c] = zero();
  outer<Down, R, C>(block.q, tile.k + sub, tile.next_k + sub, kSub, head_dim, acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(block.s + r * kAttnTile + (sub + c) * kSub, acc[r][c]);
}

// Dot products of the subtiles [sub, last), C at a time, then fewer.
template <int R, int C, class T>
KVASIR_INLINE void score_range(const Block<T>& block, const Tile<T>& tile, int head_dim, int sub, int last) {
  for (; sub + C <= last; sub += C) score_subs<R, C>(block, tile, head_dim, sub);
  if constexpr (C > 1) score_range<R, C / 2>(block, tile, head_dim, sub, last);
}

// Where 16 columns of V at a position of the tile lie, or those of the next tile.
template <class T>
KVASIR_INLINE const T* v_at(const T* const* v, int j, int head_dim, int column) {
  return v[j / kSub] + int64_t(j % kSub) * head_dim + column / 16 * Sum<T>::kColumns;
}

// acc + p v for position j alone, of one query vector: the other place of its pair gets zeros.
template <int C, class T>
KVASIR_INLINE void add_position(const Factor<T>* p, const Tile<T>& tile, int head_dim, int column, int j,
                                vf (&acc)[1][C]) {
  const int first = j & ~1;
  const Factor<T> a[2] = {j == first ? p[j] : Factor<T>(0), j == first ? Factor<T>(0) : p[j]};
#pragma GCC unroll 8
  for (int c = 0; c < C; c++) {
    const T* low = v_at(tile.v, first, head_dim, column + c * 16);
    const Pair both = load_pair(low, low + head_dim);
    acc[0][c] = pair_dot(acc[0][c], a, j == first ? only_low(both) : only_high(both));
  }
}

// acc + the sum of p v over the positions [begin, end) of the tile; whole pairs where the type is summed so.
template <int R, int C, class T>
KVASIR_INLINE void add_range(const Factor<T>* p, const Tile<T>& tile, int head_dim, int column, int begin,
                             int end, vf (&acc)[R][C]) {
  for (int j = begin; j < end;) {
    const int sub_end = (j / kSub + 1) * kSub, stop = sub_end < end ? sub_end : end;
    const Factor<T>* a = p + j;
    const T *b = v_at(tile.v, j, head_dim, column), *next = v_at(tile.next_v, j, head_dim, column);
    outer<Across, R, C>(&a, &b, &next, head_dim, stop - j, acc);
    j = stop;
  }
}

// Columns of o: o = o * scale + sum of p v over the positions [begin, end) of the tile, for R query vectors.
// The range may only cut a pair where R is 1.
template <int R, int C, class T>
KVASIR_INLINE void mix_columns(float* const* o, const float* scale, const Factor<T>* p, const Tile<T>& tile,
                               int head_dim, int column, int begin, int end) {
  vf acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[r][c] = mul(load(o[r] + column + c * 16), set1(scale[r]));
  if constexpr (R == 1 && Sum<T>::kPairs) {
    if (begin % 2 && begin < end) add_position<C>(p, tile, head_dim, column, begin++, acc);
    const int stop = end & ~1;
    add_range<R, C>(p, tile, head_dim, column, begin, stop, acc);
    if (begin <= stop && stop < end) add_position<C>(p, tile, head_dim, column, stop, acc);
  } else {
    add_range<R, C>(p, tile, head_dim, column, begin, end, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(o[r] + column + c * 16, acc[r][c]);
}

template <int R, int C, class T>
KVASIR_INLINE void mix(float* const* o, const float* scale, const Factor<T>* p, const Tile<T>& tile,
                       int head_dim, int column, int begin, int end) {
  for (; column + C * 16 <= head_dim; column += C * 16)
    mix_columns<R, C>(o, scale, p, tile, head_dim, column, begin, end);
  if constexpr (C > 1) mix<R, C / 2>(o, scale, p, tile, head_dim, column, begin, end);
}

// What multiplies V: as it is for f32, else rounded, and in half of the place of the scores or less.
template <class T>
KVASIR_INLINE Factor<T>* factors(float* s) {
  return reinterpret_cast<Factor<T>*>(s);
}
template <class T>
KVASIR_INLINE void store_factor(Factor<T>* p, vf x) {
  if constexpr (Sum<T>::kPairs) {
    store_rounded(p, x);
  } else {
    store(p, x);
  }
}

// Scores of one query vector to the left factors of V; updates m and l, returns the factor of o.
template <class T>
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
    store_factor<T>(factors<T>(s) + i * kSub, scales.v ? mul(p, load(scales.v + i * kSub)) : p);
    sum = add(sum, p);
  }
  store(l, sum);
  *m = now;
  float factor[16];
  store(factor, c);
  return factor[0];
}

// The same for R query vectors that see the whole tile, without a softcap: every step for all of them at
// once.
template <int R, class T>
KVASIR_INLINE void soften_whole(Block<T>& block, const Scales& scales, float scale) {
  float before[16] = {}, now[16] = {};
  for (int r = 0; r < R; r++) {
    vf top = set1(-__builtin_inff());
#pragma GCC unroll 4
    for (int i = 0; i < kSubs; i++) {
      float* at = block.s + r * kAttnTile + i * kSub;
      vf x = load(at);
      if (scales.k) x = mul(x, load(scales.k + i * kSub));
      x = mul(x, set1(scale));
      top = vmax(x, top);
      store(at, x);
    }
    before[r] = *block.m[r];
    now[r] = reduce_max(top);
  }
  const vf most = vmax(load(before), load(now));
  float c[16];
  store(c, exp_bounded(sub(load(before), most)));
  store(now, most);
  for (int r = 0; r < R; r++) {
    float* s = block.s + r * kAttnTile;
    vf sum = mul(load(block.l[r]), set1(c[r]));
#pragma GCC unroll 4
    for (int i = 0; i < kSubs; i++) {
      const vf p = exp_bounded(sub(load(s + i * kSub), set1(now[r])));
      store_factor<T>(factors<T>(s) + i * kSub, scales.v ? mul(p, load(scales.v + i * kSub)) : p);
      sum = add(sum, p);
    }
    store(block.l[r], sum);
    *block.m[r] = now[r];
    block.c[r] = c[r];
  }
}

template <int R, class T>
KVASIR_INLINE void soften_rows(Block<T>& block, const Tile<T>& tile, const ScoreRule& rule) {
  bool whole = rule.softcap <= 0.0f;
  for (int r = 0; r < R; r++) whole = whole && block.begin[r] == 0 && block.end[r] == kAttnTile;
  if (whole) return soften_whole<R>(block, tile.scales, rule.scale);
  for (int r = 0; r < R; r++)
    if (block.begin[r] < block.end[r])
      block.c[r] = soften<T>(block.s + r * kAttnTile, block.m[r], block.l[r], block.begin[r], block.end[r],
                             tile.scales, rule);
}

// The positions visible to all R query vectors, in whole pairs, are mixed together, what comes before and
// after one by one: the order of each stays ascending.
template <int R, class T>
KVASIR_INLINE void mix_block(Block<T>& block, const Tile<T>& tile, int head_dim) {
  constexpr int kWhole = Sum<T>::kPairs ? 2 : 1;
  int begin = block.begin[0], end = block.end[0];
  const Factor<T>* p = factors<T>(block.s);
  for (int r = 0; r < R; r++) {
    begin = block.begin[r] > begin ? block.begin[r] : begin;
    end = block.end[r] < end ? block.end[r] : end;
  }
  if constexpr (R > 1) {
    begin = (begin + kWhole - 1) / kWhole * kWhole;
    end = end / kWhole * kWhole;
  }
  const bool together = begin < end;
  for (int r = 0; r < R; r++) {
    const int stop = together ? begin : block.end[r];
    if (block.begin[r] >= stop) continue;
    mix<1, kBlockCols>(block.o + r, block.c + r, p + r * kFactorRow<T>, tile, head_dim, 0, block.begin[r],
                       stop);
    block.c[r] = 1.0f;
  }
  if (!together) return;
  mix<R, kBlockCols>(block.o, block.c, p, tile, head_dim, 0, begin, end);
  const float one = 1.0f;
  for (int r = 0; r < R; r++)
    if (end < block.end[r])
      mix<1, kBlockCols>(block.o + r, &one, p + r * kFactorRow<T>, tile, head_dim, 0, end, block.end[r]);
}

template <int R, class T>
static void attend_rows(Block<T>& block, const Tile<T>& tile, const ScoreRule& rule) {
  int begin = kAttnTile, end = 0;
  for (int r = 0; r < R; r++) {
    if (block.begin[r] >= block.end[r]) continue;
    begin = block.begin[r] < begin ? block.begin[r] : begin;
    end = block.end[r] > end ? block.end[r] : end;
  }
  if (begin >= end) return;
  score_range<R, kBlockCols>(block, tile, rule.head_dim, begin / kSub, (end + kSub - 1) / kSub);
  soften_rows<R>(block, tile, rule);
  mix_block<R>(block, tile, rule.head_dim);
}

template <int R, class T>
KVASIR_INLINE void attend_block(Block<T>& block, int rows, const Tile<T>& tile, const ScoreRule& rule) {
  if (rows == R) {
    attend_rows<R>(block, tile, rule);
  } else if constexpr (R > 1) {
    attend_block<R - 1>(block, rows, tile, rule);
  }
}

}  // namespace kvasir::KVASIR_ISA
