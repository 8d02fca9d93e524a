// One tile of 64 logical positions against one stripe of query vectors. Include after vec.h and what the
// level knows about pairs (pair_floats.inl, or its own).
//
// Exact arithmetic of a query vector with visible positions [begin, end) of the tile (never empty here), for
// caches of bf16 and smaller types, with q and p rounded to bf16 and subnormals flushed:
//   s[j] = fma(q[d+1], k[d+1][j], s[j]), then fma(q[d], k[d][j], s[j]), d = 0, 2, 4 ... from s = 0;
//   s[j] = s[j] * (scale of K's head j, if any), with a softcap also * scale and capped;  -inf if j is not
//   visible;  unit = log2 e * scale, with a softcap log2 e
//   m'   = max(m, max_j s[j] * unit);  c = 2^(m - m');  p[j] = 2^fma(s[j], unit, -m'), exactly 0 where not
//   visible; 2^x never falls below 2^-125, so that c and the p of visible positions do not either
//   l    = l * c, then + p of subtile 0, 1, 2, 3, on 16 lanes (lane = position mod 16), before p is rounded
//   p[j] = p[j] * (scale of V's head j, if any), rounded
//   o[d] = o[d] * c, then fma(p[j+1], v[j+1][d], o[d]) and fma(p[j], v[j][d], o[d]) for the pairs (j, j + 1)
//   with a visible position, j = 0, 2, 4 ...; the factors of the one that is not visible are zero
// For caches of f32 nothing is rounded, and both sums run in ascending order over single places.
// Positions that are not visible are left out of o, not multiplied by zero: their V may not have been
// written.
#pragma once
#include "generic/attention_softmax.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kCacheLine = 64;

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

// Scores of query vectors from r0 on against the subtiles from `sub` on.
template <int R, int C, class T>
KVASIR_INLINE void score_subs(const Stripe<T>& stripe, int r0, const Tile<T>& tile, int head_dim, int sub) {
  vf acc[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) acc[r][c] = zero();
  outer<Down, R, C>(stripe.q + r0, tile.k + sub, tile.next_k + sub, kSub, head_dim, acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) store(stripe.s + (r0 + r) * kAttnTile + (sub + c) * kSub, acc[r][c]);
}

// Dot products of the subtiles [sub, last), C at a time, then fewer.
template <int R, int C, class T>
KVASIR_INLINE void score_range(const Stripe<T>& stripe, int r0, const Tile<T>& tile, int head_dim, int sub,
                               int last) {
  for (; sub + C <= last; sub += C) score_subs<R, C>(stripe, r0, tile, head_dim, sub);
  if constexpr (C > 1) score_range<R, C / 2>(stripe, r0, tile, head_dim, sub, last);
}

template <int R, class T>
static void score_block(const Stripe<T>& stripe, int r0, const Tile<T>& tile, int head_dim) {
  if (stripe.whole) return score_range<R, kBlockCols>(stripe, r0, tile, head_dim, 0, kSubs);
  int begin = kAttnTile, end = 0;
  for (int r = r0; r < r0 + R; r++) {
    if (stripe.begin[r] >= stripe.end[r]) continue;
    begin = stripe.begin[r] < begin ? stripe.begin[r] : begin;
    end = stripe.end[r] > end ? stripe.end[r] : end;
  }
  if (begin < end)
    score_range<R, kBlockCols>(stripe, r0, tile, head_dim, begin / kSub, (end + kSub - 1) / kSub);
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
                       const ScoreRule& rule, int column, int begin, int end) {
  for (; column + C * 16 <= rule.value_dim; column += C * 16)
    mix_columns<R, C>(o, scale, p, tile, rule.head_dim, column, begin, end);
  if constexpr (C > 1) mix<R, C / 2>(o, scale, p, tile, rule, column, begin, end);
}

// The positions visible to all R query vectors from r0 on, in whole pairs, are mixed together, what comes
// before and after one by one: the order of each stays ascending.
template <int R, class T>
static void mix_block(Stripe<T>& stripe, int r0, const Tile<T>& tile, const ScoreRule& rule) {
  constexpr int kWhole = Sum<T>::kPairs ? 2 : 1;
  const int *first = stripe.begin + r0, *last = stripe.end + r0;
  float *c = stripe.c + r0, **o = stripe.o + r0;
  const Factor<T>* p = factors<T>(stripe.s) + r0 * kFactorRow<T>;
  if (stripe.whole) return mix<R, kBlockCols>(o, c, p, tile, rule, 0, 0, kAttnTile);
  int begin = first[0], end = last[0];
  for (int r = 0; r < R; r++) {
    begin = first[r] > begin ? first[r] : begin;
    end = last[r] < end ? last[r] : end;
  }
  if constexpr (R > 1) {
    begin = (begin + kWhole - 1) / kWhole * kWhole;
    end = end / kWhole * kWhole;
  }
  const bool together = begin < end;
  for (int r = 0; r < R; r++) {
    const int stop = together ? begin : last[r];
    if (first[r] >= stop) continue;
    mix<1, kBlockCols>(o + r, c + r, p + r * kFactorRow<T>, tile, rule, 0, first[r], stop);
    c[r] = 1.0f;
  }
  if (!together) return;
  mix<R, kBlockCols>(o, c, p, tile, rule, 0, begin, end);
  const float one = 1.0f;
  for (int r = 0; r < R; r++)
    if (end < last[r]) mix<1, kBlockCols>(o + r, &one, p + r * kFactorRow<T>, tile, rule, 0, end, last[r]);
}

template <int N>
struct Constant {
  static constexpr int value = N;
};

// f(R) for the rows of a block, as a constant.
template <int R = kBlockRows, class F>
KVASIR_INLINE void with_rows(int rows, F f) {
  if (rows >= R) return f(Constant<R>());
  if constexpr (R > 1) with_rows<R - 1>(rows, f);
}

// The first n query vectors of the stripe against one tile.
template <class T>
KVASIR_INLINE void attend_stripe(Stripe<T>& stripe, int n, const Tile<T>& tile, const ScoreRule& rule) {
  for (int r = 0; r < n; r += kBlockRows)
    with_rows(n - r, [&](auto rows) { score_block<rows.value>(stripe, r, tile, rule.head_dim); });
  soften(stripe, n, tile.scales, rule);
  for (int r = 0; r < n; r += kBlockRows)
    with_rows(n - r, [&](auto rows) { mix_block<rows.value>(stripe, r, tile, rule); });
}

}  // namespace kvasir::KVASIR_ISA
