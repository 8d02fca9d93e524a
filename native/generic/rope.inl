// rope_write: splits qkv rows, norms and rotates q and k heads, writes q out and k, v to the blocks. Include
// after vec.h.
#pragma once
#include "generic/kv.inl"
#include "generic/level.inl"
#include "generic/rows.inl"

namespace kvasir::KVASIR_ISA {

// (a, b) -> (a cos - b sin, b cos + a sin), each a product and one FMA; `to` may be x. Whole vectors go
// without masks: what a masked store wrote has to reach the cache before it can be loaded.
KVASIR_INLINE void rotate_neox(const float* x, const float* cos, const float* sin, int half, float* to) {
  const int full = half & ~15, rest = half & 15;
  for (int i = 0; i < full; i += 16) {
    const vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(to + i, fnma(b, s, mul(a, c)));
    store(to + half + i, fma(a, s, mul(b, c)));
  }
  if (rest == 0) return;
  const vf a = load_n(x + full, rest), b = load_n(x + half + full, rest), c = load_n(cos + full, rest),
           s = load_n(sin + full, rest);
  store_n(to + full, fnma(b, s, mul(a, c)), rest);
  store_n(to + half + full, fma(a, s, mul(b, c)), rest);
}

KVASIR_INLINE void rotate_interleaved(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; i++) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = fma1(-b, sin[i], a * cos[i]);
    x[2 * i + 1] = fma1(a, sin[i], b * cos[i]);
  }
}

// head = rotate(norm(x)); `weight` null: no norm.
KVASIR_INLINE void prepare_head(const RopeWriteArgs& a, const float* x, const float* weight,
                                const float* angles, float* head) {
  const int half = a.rotary_dim / 2;
  if (a.neox && !weight && a.rotary_dim == a.head_dim)
    return rotate_neox(x, angles, angles + half, half, head);
  const vf inverse = weight ? set1(inverse_rms(x, a.head_dim, a.eps)) : zero();
  for (int d = 0; d < a.head_dim; d += 16)
    store(head + d, weight ? mul(mul(load(x + d), inverse), load(weight + d)) : load(x + d));
  if (a.neox) {
    rotate_neox(head, angles, angles + half, half, head);
  } else {
    rotate_interleaved(head, angles, angles + half, half);
  }
}

template <class T>
KVASIR_INLINE void write_k(const float* head, int head_dim, const SubTile<T>& sub, int64_t lane) {
  T codes[kMaxHeadDim];
  encode_head(head, head_dim, codes, sub.k_scale, lane);
  for (int d = 0; d < head_dim; d++) sub.k[d * kSub + lane] = codes[d];
}

template <class T>
static void rope_write_token(const RopeWriteArgs& a, int64_t t) {
  const int hd = a.head_dim;
  const float* angles = a.table + int64_t(a.rows->pos[t]) * a.rotary_dim;
  const float* q = a.qkv + t * a.ldqkv;
  for (int h = 0; h < a.n_heads; h++) prepare_head(a, q + h * hd, a.q_norm, angles, a.q + t * a.ldq + h * hd);
  const float* k = q + a.n_heads * hd;
  const float* v = k + a.n_kv_heads * hd;
  const int64_t index = a.rows->store[t], lane = index % kSub;
  for (int h = 0; h < a.n_kv_heads; h++) {
    float head[kMaxHeadDim];
    prepare_head(a, k + h * hd, a.k_norm, angles, head);
    const SubTile<T> sub = sub_tile<T>(*a.kv, *a.rows, a.rows->seq[t], index, h);
    write_k(head, hd, sub, lane);
    encode_head(v + h * hd, hd, sub.v + lane * hd, sub.v_scale, lane);
  }
}

void rope_write(const RopeWriteArgs& a) {
  with_element(a.kv->dtype, [&](auto element) {
    for (int64_t t = a.m0; t < a.m1; t++) rope_write_token<decltype(element)>(a, t);
  });
}

}  // namespace kvasir::KVASIR_ISA
