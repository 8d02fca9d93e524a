// attention: query tokens of one sequence against one KV head, segment by segment, tile by tile. Include
// after what attention_tile.inl needs.
//
// A segment of kAttnSplit absolute positions has its own m, l, o (m = -inf, l = o = 0 at its start, tiles
// ascending, as attention_tile.inl says). Segments with a visible position are combined in ascending order
// from M = -inf, L = O = 0:
//   ls = tree sum of the 16 lanes of l;  M' = max(M, m);  a = 2^(M - M');  b = 2^(m - M')
//   L = fma(ls, b, L * a);  O[d] = fma(o[d], b, O[d] * a)
// and out[d] = O[d] / L. A sink z comes last: z' = z log2 e;  M' = max(M, z');  a = 2^(M - M');
//   out[d] = O[d] * a / fma(L, a, 2^(z' - M')).
// Tiles and segments without a visible position are skipped. All of this depends on the query's position and
// the window alone, so that neither chunks, blocks of queries, other rows of the step nor the threads that
// compute the segments can change a bit.
#pragma once
#include "generic/attention_tile.inl"
#include "generic/flush.inl"
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

// Where the item keeps its query vectors' state in the scratch, and what it can see.
struct Item {
  const AttentionArgs* a;
  int group, head_dim;
  int64_t n_vectors;
  float *o, *state;  // of the segment at hand
  float *total, *total_state, *q, *s, *gathered, *scales;
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
  item.n_vectors = (a.t1 - a.t0) * item.group;
  item.o = a.scratch;
  item.total = item.o + item.n_vectors * item.head_dim;
  item.q = item.total + item.n_vectors * item.head_dim;
  item.s = item.q + item.n_vectors * item.head_dim;
  item.state = item.s + kLanes * kAttnTile;  // of one stripe
  item.total_state = item.state;
  item.gathered = item.state + item.n_vectors * kAttnState;
  item.scales = item.gathered + 2 * kAttnTile * item.head_dim;
  item.rule = score_rule(item.head_dim, a.scale, a.softcap);
  return item;
}

// First visible position of a token.
KVASIR_INLINE int64_t visible_from(const AttentionArgs& a, int64_t t) {
  const int64_t low = int64_t(a.rows->pos[t]) - a.window + 1;
  return a.window > 0 && low > 0 ? low : 0;
}

// The positions [low, high) that any of the item's tokens sees.
struct Span {
  int64_t low, high;
};
KVASIR_INLINE Span visible(const AttentionArgs& a) {
  Span span = {visible_from(a, a.t0), 0};
  for (int64_t t = a.t0; t < a.t1; t++) {
    span.low = visible_from(a, t) < span.low ? visible_from(a, t) : span.low;
    span.high = a.rows->pos[t] + 1 > span.high ? a.rows->pos[t] + 1 : span.high;
  }
  return span;
}

KVASIR_INLINE int clamp_to_tile(int64_t x) { return x < 0 ? 0 : x > kAttnTile ? kAttnTile : int(x); }

KVASIR_INLINE const float* query(const Item& item, int64_t i) {
  const int64_t head = item.a->kv_head * item.group + i % item.group;
  return item.a->q + (item.a->t0 + i / item.group) * item.a->ldq + head * item.head_dim;
}

KVASIR_INLINE void round_queries(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++)
    for (int d = 0; d < item.head_dim; d += 16) store_rounded(item.q_of(i) + d, load(query(item, i) + d));
}

// The n query vectors from place i on.
template <class T>
KVASIR_INLINE void set_vectors(const Item& item, int64_t i, int64_t n, Stripe<T>& stripe) {
  stripe.s = item.s;
  for (int64_t r = 0; r < n; r++) {
    float* state = item.state_of(i + r);
    if constexpr (Sum<T>::kPairs) {
      stripe.q[r] = item.q_of(i + r);
    } else {
      stripe.q[r] = query(item, i + r);
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
    const int64_t t = a.t0 + (i + r) / item.group;
    stripe.begin[r] = clamp_to_tile(visible_from(a, t) - start);
    stripe.end[r] = clamp_to_tile(int64_t(a.rows->pos[t]) + 1 - start);
  }
}

// Runs the tile at logical position `start` for the query vectors of tokens [t0, t1).
template <class T>
static void attend_tile(const Item& item, const Tile<T>& tile, int64_t start, int64_t t0, int64_t t1) {
  const AttentionArgs& a = *item.a;
  const int64_t last = (t1 - a.t0) * item.group;
  Stripe<T> stripe;
  stripe.whole = true;
  for (int64_t t = t0; t < t1; t++)
    stripe.whole &= visible_from(a, t) <= start && a.rows->pos[t] >= start + kAttnTile - 1;
  for (int64_t i = (t0 - a.t0) * item.group; i < last; i += kStripeRows) {
    const int n = last - i < kStripeRows ? int(last - i) : kStripeRows;
    set_vectors(item, i, n, stripe);
    if (!stripe.whole) set_visible(item, i, n, start, stripe);
    attend_stripe(stripe, n, tile, item.rule);
  }
}

// Where the scales of a tile are kept, K's and V's, where the type has them.
template <class T>
KVASIR_INLINE Scales tile_scales(const Item& item) {
  if constexpr (!Element<T>::kScaled) return {nullptr, nullptr};
  return {item.scales, item.scales + kAttnTile};
}

// Subtile i of what comes after the tile at `start`: of the item's next tile, or, after its last one, of the
// first that the thread will want for another item. False where it is not wanted.
template <class T>
KVASIR_INLINE bool find_next(const AttentionArgs& a, int64_t start, int64_t high, int i, SubTile<T>* sub) {
  const int64_t segment_end = (a.segment + 1) * kAttnSplit;
  const int64_t end = a.partial && segment_end < high ? segment_end : high;
  const bool last = start + kAttnTile >= end;
  const ComingKv next = last ? a.coming : ComingKv{a.seq, start + kAttnTile, end, a.kv_head};
  const int64_t p = next.low / kAttnTile * kAttnTile + i * kSub;
  if (p + kSub <= next.low || p >= next.high) return false;
  *sub = sub_tile<T>(*a.kv, *a.rows, next.seq, p, next.kv_head);
  return true;
}

template <class T>
KVASIR_INLINE void fetch_sub(const SubTile<T>& sub, int head_dim) {
  constexpr int kPerLine = kCacheLine / int(sizeof(T));
  for (int n = 0; n < kSub * head_dim; n += kPerLine) {
    __builtin_prefetch(sub.k + n);
    __builtin_prefetch(sub.v + n);
  }
}

// Points at the pages' own subtiles for the positions [low, high) of the tile.
template <class T>
KVASIR_INLINE Tile<T> paged_tile(const Item& item, int64_t start, int64_t low, int64_t high) {
  const AttentionArgs& a = *item.a;
  Tile<T> tile = {};
  tile.scales = tile_scales<T>(item);
  for (int i = 0; i < kSubs; i++) {
    const int64_t p = start + i * kSub;
    SubTile<T> next;
    const bool wanted = find_next(a, start, high, i, &next);
    if (p + kSub <= low || p >= high) {
      if (wanted) fetch_sub(next, item.head_dim);
      continue;
    }
    const SubTile<T> sub = sub_tile<T>(*a.kv, *a.rows, a.seq, p, a.kv_head);
    tile.k[i] = sub.k;
    tile.v[i] = sub.v;
    tile.next_k[i] = wanted ? next.k : sub.k;
    tile.next_v[i] = wanted ? next.v : sub.v;
    if constexpr (Element<T>::kScaled) {
      const vf unit = set1(Element<T>::kUnit);
      store(item.scales + i * kSub, mul(load_bf16(sub.k_scale), unit));
      store(item.scales + kAttnTile + i * kSub, mul(load_bf16(sub.v_scale), unit));
    }
  }
  return tile;
}

// The same tile packed into the scratch: pays when many query vectors read it.
template <class T>
KVASIR_INLINE Tile<Packed> packed_tile(const Item& item, const Tile<T>& from, int64_t start, int64_t low,
                                       int64_t high) {
  Tile<Packed> tile = {};
  tile.scales = from.scales;
  const int hd = item.head_dim;
  for (int i = 0; i < kSubs; i++) {
    if (!from.k[i]) continue;
    Packed* k = reinterpret_cast<Packed*>(item.gathered) + i * kSub * hd;
    Packed* v = k + kAttnTile * hd;
    const int stop = clamp_to_tile(high - start - i * kSub), last = stop < kSub ? stop : kSub;
    for (int d = 0; d < hd; d += 2) {
      const T* row = from.k[i] + d * kSub;
      store_packed(k + d * kSub, k + (d + 1) * kSub, load_neighbours(row));
    }
    for (int j = clamp_to_tile(low - start - i * kSub) & ~1; j < last; j += 2)
      for (int d = 0; d < hd; d += 16) {
        const T* row = from.v[i] + j * hd + d;
        Packed* to = v + j * hd + d / 16 * kPackedColumns;
        store_packed(to, to + hd, load_pair(row, row + hd));
      }
    tile.k[i] = tile.next_k[i] = k;
    tile.v[i] = tile.next_v[i] = v;
  }
  return tile;
}

// Copies one position, stored at `index`, to its logical place in the scratch.
template <class T>
KVASIR_INLINE void gather_position(const Item& item, int within, int64_t index) {
  const AttentionArgs& a = *item.a;
  const int hd = item.head_dim;
  const SubTile<T> from = sub_tile<T>(*a.kv, *a.rows, a.seq, index, a.kv_head);
  const int64_t lane = index % kSub;
  T* k = reinterpret_cast<T*>(item.gathered) + within / kSub * kSub * hd + within % kSub;
  T* v = reinterpret_cast<T*>(item.gathered) + kAttnTile * hd + within * hd;
  for (int d = 0; d < hd; d++) k[d * kSub] = from.k[d * kSub + lane];
  for (int d = 0; d < hd; d++) v[d] = from.v[lane * hd + d];
  if constexpr (Element<T>::kScaled) {
    const vf unit = set1(Element<T>::kUnit);
    store_n(item.scales + within, mul(load_bf16_n(from.k_scale + lane, 1), unit), 1);
    store_n(item.scales + kAttnTile + within, mul(load_bf16_n(from.v_scale + lane, 1), unit), 1);
  }
}

// The tile as tree token `t` sees it: positions before the sequence's start from their own place, later ones
// from the token's ancestors.
template <class T>
KVASIR_INLINE Tile<T> gathered_tile(const Item& item, int64_t start, int64_t t) {
  const AttentionArgs& a = *item.a;
  const int64_t first_new = a.rows->seq_start[a.seq], low = visible_from(a, t);
  for (int64_t p = start > low ? start : low; p < start + kAttnTile && p < first_new; p++)
    gather_position<T>(item, int(p - start), p);
  for (int64_t node = t; node >= 0; node = a.rows->parent[node]) {
    const int64_t p = a.rows->pos[node];
    if (p >= start && p < start + kAttnTile && p >= low)
      gather_position<T>(item, int(p - start), a.rows->store[node]);
  }
  Tile<T> tile;
  tile.scales = tile_scales<T>(item);
  for (int i = 0; i < kSubs; i++) {
    tile.k[i] = tile.next_k[i] = reinterpret_cast<const T*>(item.gathered) + i * kSub * item.head_dim;
    tile.v[i] = tile.next_v[i] = tile.k[i] + kAttnTile * item.head_dim;
  }
  return tile;
}

// One tile for the whole item; [low, high) is what any of its tokens sees.
template <class T>
KVASIR_INLINE void run_tile(const Item& item, int64_t start, int64_t low, int64_t high) {
  const AttentionArgs& a = *item.a;
  if (a.rows->seq_tree[a.seq] && start + kAttnTile > a.rows->seq_start[a.seq]) {
    for (int64_t t = a.t0; t < a.t1; t++)
      if (start <= a.rows->pos[t] && start + kAttnTile > visible_from(a, t))
        attend_tile(item, gathered_tile<T>(item, start, t), start, t, t + 1);
    return;
  }
  const Tile<T> tile = paged_tile<T>(item, start, low, high);
  if constexpr (Sum<T>::kPairs) {
    if (item.n_vectors >= 2 * kBlockRows) {
      attend_tile(item, packed_tile(item, tile, start, low, high), start, a.t0, a.t1);
      return;
    }
  }
  attend_tile(item, tile, start, a.t0, a.t1);
}

KVASIR_INLINE void clear_segment(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    float* state = item.state_of(i);
    store(state, zero());
    state[kMax] = -__builtin_inff();
    for (int d = 0; d < item.head_dim; d += 16) store(item.o_of(i) + d, zero());
  }
}

KVASIR_INLINE void clear_total(const Item& item) {
  for (int64_t i = 0; i < item.n_vectors; i++) {
    float* state = item.total_state_of(i);
    state[kTotalMax] = -__builtin_inff();
    state[kTotalSum] = 0.0f;
    for (int d = 0; d < item.head_dim; d += 16) store(item.total_of(i) + d, zero());
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
  for (int d = 0; d < item.head_dim; d += 16) store(total + d, fma(load(o + d), b, mul(load(total + d), a)));
}

// Scales the total as the sink demands, and gives the sum with it.
KVASIR_INLINE vf add_sink(const Item& item, int64_t i, float sink) {
  const float *state = item.total_state_of(i), before = state[kTotalMax], last = sink * kLog2E;
  const float now = before > last ? before : last;
  const vf a = exp2_bounded(set1(before - now)), b = exp2_bounded(set1(last - now));
  float* total = item.total_of(i);
  for (int d = 0; d < item.head_dim; d += 16) store(total + d, mul(load(total + d), a));
  return fma(set1(state[kTotalSum]), a, b);
}

KVASIR_INLINE void finish(const Item& item) {
  const AttentionArgs& a = *item.a;
  for (int64_t i = 0; i < item.n_vectors; i++) {
    vf sum = set1(item.total_state_of(i)[kTotalSum]);
    float* total = item.total_of(i);
    if (a.sinks) sum = add_sink(item, i, a.sinks[a.kv_head * item.group + i % item.group]);
    float* out = a.out + i / item.group * a.ldo + i % item.group * item.head_dim;
    for (int d = 0; d < item.head_dim; d += 16) store(out + d, div(load(total + d), sum));
  }
}

// One segment into the item's o and state.
template <class T>
static void run_segment(const Item& item, int64_t segment, const Span& span) {
  clear_segment(item);
  const int64_t begin = segment * kAttnSplit, end = begin + kAttnSplit;
  const int64_t stop = end < span.high ? end : span.high;
  int64_t start = begin > span.low ? begin : span.low / kAttnTile * kAttnTile;
  for (; start < stop; start += kAttnTile) run_tile<T>(item, start, span.low, span.high);
}

// The segment in the item's o and state joins the total of the query vectors that see some of it.
KVASIR_INLINE void add_segment(const Item& item, int64_t segment) {
  const AttentionArgs& a = *item.a;
  const int64_t begin = segment * kAttnSplit, end = begin + kAttnSplit;
  for (int64_t i = 0; i < item.n_vectors; i++) {
    const int64_t t = a.t0 + i / item.group;
    if (visible_from(a, t) < end && a.rows->pos[t] >= begin) add_vector(item, i);
  }
}

template <class T>
static void run_item(const Item& item) {
  const Span span = visible(*item.a);
  if constexpr (Sum<T>::kPairs) round_queries(item);
  if (item.a->partial) return run_segment<T>(item, item.a->segment, span);
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
