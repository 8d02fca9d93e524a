// One attention item: its query vectors, their state in the scratch, and the positions that they see. Include
// after what attention_tile.inl needs.
#pragma once
#include "generic/attention_tile.inl"

namespace kvasir::KVASIR_ISA {

// Where the item keeps its query vectors' state in the scratch, and what it can see.
struct Item {
  const AttentionArgs* a;
  int group, head_dim, value_dim;
  int64_t n_vectors;
  float *o, *state;  // of the segment at hand
  float *total, *total_state, *q, *s, *gathered, *scales, *keys;
  ScoreRule rule;
  float* o_of(int64_t i) const { return o + i * head_dim; }
  Rounded* q_of(int64_t i) const { return reinterpret_cast<Rounded*>(q + i * head_dim); }
  float* total_of(int64_t i) const { return total + i * head_dim; }
  // 16 lanes of l, then m; of the total M and L. Both may lie in the same place.
  float* state_of(int64_t i) const { return state + i * kAttnState; }
  float* total_state_of(int64_t i) const { return total_state + i * kAttnState; }
};
enum StateSlot { kMax = 16, kTotalMax = 17, kTotalSum = 18 };

KVASIR_INLINE Item make_item(const AttentionArgs& a) {
  Item item;
  item.a = &a;
  item.group = a.n_heads / a.kv->n_kv_heads;
  item.head_dim = a.kv->head_dim;
  item.value_dim = value_dim(*a.kv);
  item.n_vectors = (a.t1 - a.t0) * item.group;
  item.o = a.scratch;
  item.total = item.o + item.n_vectors * item.head_dim;
  item.q = item.total + item.n_vectors * item.head_dim;
  item.s = item.q + item.n_vectors * item.head_dim;
  item.state = item.s + kLanes * kAttnTile;  // of one stripe
  item.total_state = item.state;
  item.gathered = item.state + item.n_vectors * kAttnState;
  item.scales = item.gathered + 2 * kAttnTile * item.head_dim;
  item.keys = item.scales + 2 * kAttnTile;
  item.rule = score_rule(item.head_dim, item.value_dim, a.scale, a.softcap, a.slopes);
  return item;
}

// The token at a place of the item.
KVASIR_INLINE int64_t token_at(const AttentionArgs& a, int64_t place) {
  return a.tokens ? a.tokens[place] : a.t0 + place;
}

// First visible position of a token.
KVASIR_INLINE int64_t visible_from(const AttentionArgs& a, int64_t t) {
  const int64_t pos = a.rows->pos[t], low = pos - a.window + 1;
  if (a.chunked) return pos - pos % a.window;
  return a.window > 0 && low > 0 ? low : 0;
}

// Behind the last one.
KVASIR_INLINE int64_t visible_to(const AttentionArgs& a, int64_t t) {
  const int64_t pos = a.rows->pos[t];
  if (!a.ends) return pos + 1;
  return a.window > 0 && pos + a.window < a.ends[t] ? pos + a.window : a.ends[t];
}

// The positions [low, high) that any of the item's tokens sees.
struct Span {
  int64_t low, high;
};
KVASIR_INLINE Span visible(const AttentionArgs& a) {
  Span span = {visible_from(a, token_at(a, 0)), 0};
  for (int64_t n = 0; n < a.t1 - a.t0; n++) {
    const int64_t t = token_at(a, n);
    span.low = visible_from(a, t) < span.low ? visible_from(a, t) : span.low;
    span.high = visible_to(a, t) > span.high ? visible_to(a, t) : span.high;
  }
  return span;
}

KVASIR_INLINE int clamp_to_tile(int64_t x) { return x < 0 ? 0 : x > kAttnTile ? kAttnTile : int(x); }

KVASIR_INLINE const float* query(const Item& item, int64_t i) {
  const int64_t head = item.a->kv_head * item.group + i % item.group;
  return item.a->q + token_at(*item.a, i / item.group) * item.a->ldq + head * item.head_dim;
}

// Of latents: what was absorbed, then what turns, as floats in the place of rounded queries.
KVASIR_INLINE float* joined_query(const Item& item, int64_t i) {
  const AttentionArgs& a = *item.a;
  const int rest = item.head_dim - item.value_dim;
  const int64_t t = token_at(a, i / item.group), head = a.kv_head * item.group + i % item.group;
  const float *q = a.q + t * a.ldq + head * item.value_dim, *turned = a.turned + t * a.ldt + head * rest;
  float* to = item.q + i * item.head_dim;
  for (int d = 0; d < item.value_dim; d += 16) store(to + d, load(q + d));
  for (int d = 0; d < rest; d += 16) store(to + item.value_dim + d, load(turned + d));
  return to;
}

// In ascending order: a rounded number is no larger than the float that it is made of.
template <class T>
KVASIR_INLINE void join_queries(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    const float* q = joined_query(item, i);
    if constexpr (Sum<T>::kPairs)
      for (int d = 0; d < item.head_dim; d += 16) store_rounded(item.q_of(i) + d, load(q + d));
  }
}

KVASIR_INLINE void round_queries(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++)
    for (int d = 0; d < item.head_dim; d += 16) store_rounded(item.q_of(i) + d, load(query(item, i) + d));
}

// Of an item of several sequences the one at place n: its state stays where it is. What it fetches ahead in
// the end is the next one's first tile from `own` on.
KVASIR_INLINE Item one_of(const Item& item, int64_t n, int64_t own, AttentionArgs* alone) {
  const AttentionArgs& a = *item.a;
  *alone = a;
  alone->seq = a.rows->seq[a.tokens[n]];
  alone->tokens = a.tokens + n;
  alone->t1 = a.t0 + 1;
  if (n + 1 < a.t1 - a.t0) {
    const int64_t t = a.tokens[n + 1], from = visible_from(a, t), low = own > from ? own : from;
    alone->coming = {a.rows->seq[t], low, visible_to(a, t), a.kv_head};
  }
  Item one = item;
  const int64_t first = n * item.group;
  one.a = alone;
  one.n_vectors = item.group;
  one.o = item.o_of(first);
  one.state = item.state_of(first);
  one.q = item.q + first * item.head_dim;
  return one;
}

}  // namespace kvasir::KVASIR_ISA
