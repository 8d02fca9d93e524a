// Tiles of latents: entries lie as V does, and stand for K turned around. Include after what
// attention_tile.inl needs.
#pragma once
#include "generic/attention_source.inl"

namespace kvasir::KVASIR_ISA {

// Sixteen entries [16][dim] as K wants them: [dim][16].
template <class T>
KVASIR_INLINE void turn_entries(const T* entries, int dim, T* keys) {
  for (int d = 0; d < dim; d += kSub)
    for (int j = 0; j < kSub; j++)
      for (int i = 0; i < kSub; i++) keys[(d + i) * kSub + j] = entries[j * dim + d + i];
}

template <class T>
KVASIR_INLINE void load_scales(const Item& item, int i, const uint16_t* scales) {
  if constexpr (Element<T>::kScaled) {
    const vf scale = mul(load_bf16(scales), set1(Element<T>::kUnit));
    store(item.scales + i * kSub, scale);
    store(item.scales + kAttnTile + i * kSub, scale);
  }
}

// The positions [low, high) of the tile: keys in the scratch, values where they lie.
template <class T>
KVASIR_INLINE Tile<T> latent_tile(const Item& item, int64_t start, int64_t low, int64_t high) {
  const AttentionArgs& a = *item.a;
  Tile<T> tile = {};
  tile.scales = tile_scales<T>(item);
  for (int i = 0; i < kSubs; i++) {
    const int64_t p = start + i * kSub;
    if (p + kSub <= low || p >= high) continue;
    const SubTile<T> sub = sub_tile<T>(*a.kv, *a.rows, a.seq, p, a.kv_head);
    T* keys = reinterpret_cast<T*>(item.keys) + i * kSub * item.head_dim;
    turn_entries(sub.v, item.head_dim, keys);
    load_scales<T>(item, i, sub.k_scale);
    tile.k[i] = tile.next_k[i] = keys;
    tile.v[i] = tile.next_v[i] = sub.v;
  }
  return tile;
}

}  // namespace kvasir::KVASIR_ISA
