// Where the keys and values of a tile come from: the blocks themselves, a packed copy of them, or, for tree
// rows, what was gathered from them. Include after what attention_tile.inl needs.
#pragma once
#include "generic/attention_item.inl"

namespace kvasir::KVASIR_ISA {

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

// Points at the blocks' own subtiles for the positions [low, high) of the tile.
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
  const T* key = from.k ? from.k + lane : from.v + lane * hd;
  for (int d = 0; d < hd; d++) k[d * kSub] = key[from.k ? d * kSub : d];
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

}  // namespace kvasir::KVASIR_ISA
