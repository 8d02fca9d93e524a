// Of the query vectors of one attention stripe: the types that its steps share, and the step in the middle,
// from scores to what multiplies V. Include after vec.h and what the level knows about pairs
// (pair_floats.inl, or its own).
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
  // Where the same subtiles of the next tile lie; fetched meanwhile, because blocks lie anywhere and what
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

// Query vectors whose scores become probabilities together: what one of them has to wait for, the others
// fill. Their products are computed by blocks of kBlockRows. Two blocks: 4 to 12 % of prefill beyond one (AMD
// Zen 5, two threads).
constexpr int kStripeRows = 2 * kBlockRows;
static_assert(kStripeRows <= kLanes);

// What a score loses: the slope of the vector's head, for each position between it and the vector's own,
// which is `at` of the tile and may lie outside of it.
struct Lean {
  float slope, at;
};

// [begin, end): visible positions of the current tile; whole: all of them, for every vector.
template <class T>
struct Stripe {
  const Factor<T>* q[kStripeRows];
  float* o[kStripeRows];
  float* l[kStripeRows];
  float* m[kStripeRows];
  bool whole;
  int begin[kStripeRows], end[kStripeRows];
  float c[kStripeRows];
  Lean lean[kStripeRows];  // where scores lean
  float* s;                // [rows][64] scores, then their probabilities as factors of V
};

// Left factors of V of neighbouring query vectors lie so far apart: they are in the place of the scores.
template <class T>
constexpr int kFactorRow = kAttnTile * int(sizeof(float) / sizeof(Factor<T>));

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

constexpr float kLog2E = 0x1.715476p+0f;

// softcap: 0 for none. unit: of scores, in powers of two.
struct ScoreRule {
  int head_dim, value_dim;
  float scale, softcap, unit;
  bool leans;
};
KVASIR_INLINE ScoreRule score_rule(int head_dim, int value_dim, float scale, float softcap, bool leans) {
  return {head_dim, value_dim, scale, softcap, softcap > 0.0f || leans ? kLog2E : scale * kLog2E, leans};
}

alignas(64) constexpr float kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// x - slope |p - at| for the 16 positions of the tile from j on; distances are whole numbers, exact in f32.
KVASIR_INLINE vf leaned(vf x, int j, const Lean& lean) {
  const vf far = add(load(kLaneNumbers), set1(float(j) - lean.at));
  return fnma(vmax(far, sub(zero(), far)), set1(lean.slope), x);
}

// The larger ones of all subtiles of a tile.
template <int kFrom = 0, int kTo = kSubs>
KVASIR_INLINE vf top_of_tile(const float* s) {
  if constexpr (kTo - kFrom == 1) {
    return load(s + kFrom * kSub);
  } else {
    constexpr int kHalf = (kFrom + kTo) / 2;
    return vmax(top_of_tile<kFrom, kHalf>(s), top_of_tile<kHalf, kTo>(s));
  }
}

// The largest of the scores [begin, end) of a query vector, which are brought to their unit.
KVASIR_INLINE float top_score(float* s, int begin, int end, const float* scales, const ScoreRule& rule,
                              const Lean& lean) {
  const vf lowest = set1(-__builtin_inff());
  const bool plain = !scales && !rule.leans && rule.softcap <= 0.0f;
  if (begin == 0 && end == kAttnTile && plain) return reduce_max(top_of_tile(s));
  vf top = lowest;
  for (int j = begin / kSub * kSub; j < end; j += kSub) {
    vf x = load(s + j);
    if (scales) x = mul(x, load(scales + j));
    if (rule.softcap > 0.0f) x = softcap(mul(x, set1(rule.scale)), set1(rule.softcap));
    if (rule.leans) x = leaned(mul(x, set1(rule.scale)), j, lean);
    store(s + j, x);
    top = vmax(select(range(begin - j, end - j), x, lowest), top);
  }
  return reduce_max(top);
}

// Scores to probabilities, in their place as left factors of V; l = l * c + their sums.
template <class T, bool kWhole, bool kScaled>
KVASIR_INLINE void to_factors(float* s, int begin, int end, float top, const float* scales, vf unit, vf c,
                              float* l) {
  const vf shift = set1(-top);
  Factor<T>* p = factors<T>(s);
  vf sum = mul(load(l), c);
#pragma GCC unroll 4
  for (int j = kWhole ? 0 : begin / kSub * kSub; j < (kWhole ? kAttnTile : end); j += kSub) {
    vf x = exp2_bounded(fma(load(s + j), unit, shift));
    if (!kWhole) x = select(range(begin - j, end - j), x, zero());
    sum = add(sum, x);
    store_factor<T>(p + j, kScaled ? mul(x, load(scales + j)) : x);
  }
  store(l, sum);
}

// Scores of n query vectors to left factors of V; updates m and l, and sets the factors of o. Each step for
// all of them at once.
template <class T, bool kWhole, bool kScaled>
KVASIR_INLINE void soften_rows(Stripe<T>& stripe, int n, const Scales scales, const ScoreRule rule) {
  float before[kLanes] = {}, now[kLanes] = {}, c[kLanes];
  float* const s = stripe.s;
  const auto begin = [&](int r) { return kWhole ? 0 : stripe.begin[r]; };
  const auto end = [&](int r) { return kWhole ? kAttnTile : stripe.end[r]; };
  for (int r = 0; r < n; r++) {
    if (begin(r) >= end(r)) continue;
    before[r] = *stripe.m[r];
    now[r] =
        top_score(s + r * kAttnTile, begin(r), end(r), kScaled ? scales.k : nullptr, rule, stripe.lean[r]);
  }
  const vf unit = set1(rule.unit), most = vmax(load(before), mul(load(now), unit));
  store(c, exp2_bounded(sub(load(before), most)));
  store(now, most);
  for (int r = 0; r < n; r++) {
    if (begin(r) >= end(r)) continue;
    stripe.c[r] = c[r];
    *stripe.m[r] = now[r];
    to_factors<T, kWhole, kScaled>(s + r * kAttnTile, begin(r), end(r), now[r], scales.v, unit, set1(c[r]),
                                   stripe.l[r]);
  }
}

template <class T>
static void soften(Stripe<T>& stripe, int n, const Scales& scales, const ScoreRule& rule) {
  if (scales.k) {
    if (stripe.whole) return soften_rows<T, true, true>(stripe, n, scales, rule);
    return soften_rows<T, false, true>(stripe, n, scales, rule);
  }
  if (stripe.whole) return soften_rows<T, true, false>(stripe, n, scales, rule);
  soften_rows<T, false, false>(stripe, n, scales, rule);
}

}  // namespace kvasir::KVASIR_ISA
