// attention: query tokens of one sequence against one KV head, segment by segment, tile by tile. Include
// after what attention_tile.inl needs.
//
// A segment of kAttnSplit absolute positions has its own m, l, o (m = -inf, l = o = 0 at its start, tiles
// ascending, as attention_tile.inl says). Segments with a visible position are combined in ascending order
// from M = -inf, L = O = 0:
//   ls = tree sum of the 16 lanes of l;  M' = max(M, m);  a = 2^(M - M');  b = 2^(m - M')
//   L = fma(ls, b, L * a);  O[d] = fma(o[d], b, O[d] * a)
// and out[d] = (O[d] + 0) / L, without a negative zero. A sink z comes last: z' = z log2 e;  M' = max(M, z');
//   a = 2^(M - M');  out[d] = (O[d] * a + 0) / fma(L, a, 2^(z' - M')).
// Tiles and segments without a visible position are skipped. All of this depends on what the query sees
// alone, so that neither chunks, blocks of queries, other rows of the step nor the threads that
// compute the segments can change a bit.
#pragma once
#include "generic/attention_latent.inl"
#include "generic/flush.inl"
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

// The n query vectors from place i on.
template <class T>
KVASIR_INLINE void set_vectors(const Item& item, int64_t i, int64_t n, Stripe<T>& stripe) {
  stripe.s = item.s;
  for (int64_t r = 0; r < n; r++) {
    float* state = item.state_of(i + r);
    if constexpr (Sum<T>::kPairs) {
      stripe.q[r] = item.q_of(i + r);
    } else {
      stripe.q[r] = item.a->turned ? item.q + (i + r) * item.head_dim : query(item, i + r);
    }
    stripe.o[r] = item.o_of(i + r);
    stripe.l[r] = state;
    stripe.m[r] = state + kMax;
  }
}

// What they see of the tile at `start`.
template <class T>
KVASIR_INLINE void set_visible(const Item& item, int64_t i, int64_t n, int64_t start, Stripe<T>& stripe) {
  const AttentionArgs& a = *item.a;
  for (int64_t r = 0; r < n; r++) {
    const int64_t t = token_at(a, (i + r) / item.group);
    stripe.begin[r] = clamp_to_tile(visible_from(a, t) - start);
    stripe.end[r] = clamp_to_tile(visible_to(a, t) - start);
  }
}

// The slopes of their heads, and where they stand.
template <class T>
KVASIR_INLINE void set_lean(const Item& item, int64_t i, int64_t n, int64_t start, Stripe<T>& stripe) {
  const AttentionArgs& a = *item.a;
  for (int64_t r = 0; r < n; r++) {
    const int64_t t = token_at(a, (i + r) / item.group), head = a.kv_head * item.group + (i + r) % item.group;
    stripe.lean[r] = {a.slopes[head], float(a.rows->pos[t] - start)};
  }
}

// Runs the tile at logical position `start` for the query vectors of the tokens at places [n0, n1).
template <class T>
static void attend_tile(const Item& item, const Tile<T>& tile, int64_t start, int64_t n0, int64_t n1) {
  const AttentionArgs& a = *item.a;
  const int64_t last = n1 * item.group;
  Stripe<T> stripe;
  stripe.whole = true;
  for (int64_t n = n0; n < n1; n++) {
    const int64_t t = token_at(a, n);
    stripe.whole &= visible_from(a, t) <= start && visible_to(a, t) >= start + kAttnTile;
  }
  for (int64_t i = n0 * item.group; i < last; i += kStripeRows) {
    const int n = last - i < kStripeRows ? int(last - i) : kStripeRows;
    set_vectors(item, i, n, stripe);
    if (!stripe.whole) set_visible(item, i, n, start, stripe);
    if (a.slopes) set_lean(item, i, n, start, stripe);
    attend_stripe(stripe, n, tile, item.rule);
  }
}

// One tile for the whole item; [low, high) is what any of its tokens sees.
template <class T>
KVASIR_INLINE void run_tile(const Item& item, int64_t start, int64_t low, int64_t high) {
  const AttentionArgs& a = *item.a;
  if (a.rows->seq_tree[a.seq] && start + kAttnTile > a.rows->seq_start[a.seq]) {
    for (int64_t t = a.t0; t < a.t1; t++)
      if (start <= a.rows->pos[t] && start + kAttnTile > visible_from(a, t))
        attend_tile(item, gathered_tile<T>(item, start, t), start, t - a.t0, t - a.t0 + 1);
    return;
  }
  const Tile<T> tile =
      a.turned ? latent_tile<T>(item, start, low, high) : paged_tile<T>(item, start, low, high);
  if constexpr (Sum<T>::kPairs) {
    if (item.n_vectors >= 2 * kBlockRows) {
      attend_tile(item, packed_tile(item, tile, start, low, high), start, 0, a.t1 - a.t0);
      return;
    }
  }
  attend_tile(item, tile, start, 0, a.t1 - a.t0);
}

KVASIR_INLINE void clear_segment(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    float* state = item.state_of(i);
    store(state, zero());
    state[kMax] = -__builtin_inff();
    for (int d = 0; d < item.value_dim; d += 16) store(item.o_of(i) + d, zero());
  }
}

KVASIR_INLINE void clear_total(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    float* state = item.total_state_of(i);
    state[kTotalMax] = -__builtin_inff();
    state[kTotalSum] = 0.0f;
    for (int d = 0; d < item.value_dim; d += 16) store(item.total_of(i) + d, zero());
  }
}

KVASIR_INLINE void add_vector(const Item& item, int64_t i) {
  const float* segment = item.state_of(i);
  float* state = item.total_state_of(i);
  const float before = state[kTotalMax], m = segment[kMax];
  const float now = before > m ? before : m;
  const vf a = exp2_bounded(set1(before - now)), b = exp2_bounded(set1(m - now));
  float sum[16];
  store(sum, fma(set1(reduce_add(load(segment))), b, mul(set1(state[kTotalSum]), a)));
  state[kTotalMax] = now;
  state[kTotalSum] = sum[0];
  float *o = item.o_of(i), *total = item.total_of(i);
  for (int d = 0; d < item.value_dim; d += 16) store(total + d, fma(load(o + d), b, mul(load(total + d), a)));
}

// Scales the total as the sink demands, and gives the sum with it.
KVASIR_INLINE vf add_sink(const Item& item, int64_t i, float sink) {
  const float *state = item.total_state_of(i), before = state[kTotalMax], last = sink * kLog2E;
  const float now = before > last ? before : last;
  const vf a = exp2_bounded(set1(before - now)), b = exp2_bounded(set1(last - now));
  float* total = item.total_of(i);
  for (int d = 0; d < item.value_dim; d += 16) store(total + d, mul(load(total + d), a));
  return fma(set1(state[kTotalSum]), a, b);
}

KVASIR_INLINE void finish(const Item& item) {
  const AttentionArgs& a = *item.a;
  for (int64_t i = 0; i < item.n_vectors; i++) {
    vf sum = set1(item.total_state_of(i)[kTotalSum]);
    float* total = item.total_of(i);
    if (a.sinks) sum = add_sink(item, i, a.sinks[a.kv_head * item.group + i % item.group]);
    float* out = a.out + i / item.group * a.ldo + i % item.group * item.value_dim;
    for (int d = 0; d < item.value_dim; d += 16) store(out + d, div(add(load(total + d), zero()), sum));
  }
}

// The tiles from `begin` on that start before `end`.
template <class T>
static void run_tiles(const Item& item, int64_t begin, int64_t end, const Span& span) {
  const int64_t stop = end < span.high ? end : span.high;
  int64_t start = begin > span.low ? begin : span.low / kAttnTile * kAttnTile;
  for (; start < stop; start += kAttnTile) run_tile<T>(item, start, span.low, span.high);
}

// The tiles that sequences share, for the tokens of all of them; then those of each.
template <class T>
static void run_sequences(const Item& item, int64_t begin, int64_t end, const Span& span) {
  const int64_t shared = item.a->shared / kAttnTile * kAttnTile, own = begin > shared ? begin : shared;
  run_tiles<T>(item, begin, end < shared ? end : shared, span);
  if (own >= end) return;
  for (int64_t n = 0; n < item.a->t1 - item.a->t0; n++) {
    AttentionArgs alone;
    const Item one = one_of(item, n, own, &alone);
    run_tiles<T>(one, own, end, visible(alone));
  }
}

// One segment into the item's o and state.
template <class T>
static void run_segment(const Item& item, int64_t segment, const Span& span) {
  clear_segment(item);
  const int64_t begin = segment * kAttnSplit, end = begin + kAttnSplit;
  if (item.a->tokens) return run_sequences<T>(item, begin, end, span);
  run_tiles<T>(item, begin, end, span);
}

// The segment in the item's o and state joins the total of the query vectors that see some of it.
KVASIR_INLINE void add_segment(const Item& item, int64_t segment) {
  const AttentionArgs& a = *item.a;
  const int64_t begin = segment * kAttnSplit, end = begin + kAttnSplit;
  for (int64_t i = 0; i < item.n_vectors; i++) {
    const int64_t t = token_at(a, i / item.group);
    if (visible_from(a, t) < end && visible_to(a, t) > begin) add_vector(item, i);
  }
}

// The only segment that anyone sees is the total: M = -inf, L = O = 0 add nothing to it but the sign of
// zeros.
KVASIR_INLINE void take_segment(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    float* state = item.total_state_of(i);
    state[kTotalSum] = reduce_add(load(state));
    state[kTotalMax] = state[kMax];
  }
}

template <class T>
static void run_item(const Item& item) {
  const Span span = visible(*item.a);
  if (item.a->turned) {
    join_queries<T>(item);
  } else if constexpr (Sum<T>::kPairs) {
    round_queries(item);
  }
  if (item.a->partial) return run_segment<T>(item, item.a->segment, span);
  if (span.low / kAttnSplit == (span.high - 1) / kAttnSplit) {
    Item only = item;
    only.o = item.total;
    run_segment<T>(only, span.low / kAttnSplit, span);
    take_segment(item);
    return finish(item);
  }
  clear_total(item);
  for (int64_t segment = span.low / kAttnSplit; segment * kAttnSplit < span.high; segment++) {
    run_segment<T>(item, segment, span);
    add_segment(item, segment);
  }
  finish(item);
}

// The item with the o and state of a segment where `partial` keeps them.
KVASIR_INLINE Item with_partial(Item item, int64_t segment) {
  const AttentionArgs& a = *item.a;
  item.o = a.partial + segment * attention_partial(a.t1 - a.t0, item.group, item.head_dim);
  item.state = item.o + item.n_vectors * item.head_dim;
  return item;
}

void attention(const AttentionArgs& a) {
  const FlushSubnormals mode;
  Item item = make_item(a);
  if (a.partial) item = with_partial(item, a.segment);
  with_element(a.kv->dtype, [&](auto element) { run_item<decltype(element)>(item); });
}

void attention_combine(const AttentionArgs& a) {
  const FlushSubnormals mode;
  const Item item = make_item(a);
  clear_total(item);
  for (int64_t segment = 0; segment < a.segment; segment++) add_segment(with_partial(item, segment), segment);
  finish(item);
}

}  // namespace kvasir::KVASIR_ISA
