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

// Heads of q or of k of one token: their norm and their angles.
struct HeadRule {
  const float* weight;
  float inverse;  // of the norm of the whole width
  const float* angles;
};

KVASIR_INLINE HeadRule head_rule(const RopeWriteArgs& a, const float* x, int n_heads, const float* weight,
                                 const float* angles) {
  const bool wide = a.norm == QkNorm::width;
  return {weight, wide ? inverse_rms(x, n_heads * a.head_dim, a.eps) : 0.0f, angles};
}

// Without a weight, of ones.
KVASIR_INLINE void norm_head(const RopeWriteArgs& a, const float* x, const HeadRule& rule, int h, float* to) {
  const bool wide = a.norm == QkNorm::width;
  if (!rule.weight) {
    const vf inverse = set1(inverse_rms(x, a.head_dim, a.eps));
    for (int d = 0; d < a.head_dim; d += 16) store(to + d, mul(load(x + d), inverse));
    return;
  }
  const float* weight = rule.weight + (wide ? h * a.head_dim : 0);
  const vf inverse = set1(wide ? rule.inverse : inverse_rms(x, a.head_dim, a.eps));
  for (int d = 0; d < a.head_dim; d += 16) store(to + d, mul(mul(load(x + d), inverse), load(weight + d)));
}

// to = rotate(norm(x)), or norm(rotate(x)), of head h.
KVASIR_INLINE void prepare_head(const RopeWriteArgs& a, const float* x, const HeadRule& rule, int h,
                                float* to) {
  const int half = a.rotary_dim / 2;
  const float *cos = rule.angles, *sin = rule.angles + half;
  const bool first = a.norm != QkNorm::none && a.norm != QkNorm::turned;
  if (a.neox && !first && a.rotary_dim == a.head_dim) {
    rotate_neox(x, cos, sin, half, to);
  } else {
    if (first) {
      norm_head(a, x, rule, h, to);
    } else {
      for (int d = 0; d < a.head_dim; d += 16) store(to + d, load(x + d));
    }
    if (a.neox) {
      rotate_neox(to, cos, sin, half, to);
    } else {
      rotate_interleaved(to, cos, sin, half);
    }
  }
  if (a.norm == QkNorm::turned) norm_head(a, to, rule, h, to);
}

template <class T>
KVASIR_INLINE void write_k(const float* head, int head_dim, const SubTile<T>& sub, int64_t lane) {
  T codes[kMaxHeadDim];
  encode_head(head, head_dim, codes, sub.k_scale, lane);
  for (int d = 0; d < head_dim; d++) sub.k[d * kSub + lane] = codes[d];
}

KVASIR_INLINE void rope_queries(const RopeWriteArgs& a, int64_t t) {
  const float* q = a.qkv + t * a.ldqkv;
  const HeadRule rule =
      head_rule(a, q, a.n_heads, a.q_norm, a.q_table + int64_t(a.rows->pos[t]) * a.rotary_dim);
  for (int h = 0; h < a.n_heads; h++)
    prepare_head(a, q + h * a.head_dim, rule, h, a.q + t * a.ldq + h * a.head_dim);
}

// Where the values of a token are that are written: normed in `to`, or where they were.
KVASIR_INLINE const float* prepare_value(const RopeWriteArgs& a, const float* x, float* to) {
  if (a.norm != QkNorm::all) return x;
  const vf inverse = set1(inverse_rms(x, a.head_dim, a.eps));
  for (int d = 0; d < a.head_dim; d += 16) store(to + d, mul(load(x + d), inverse));
  return to;
}

template <class T>
static void rope_write_token(const RopeWriteArgs& a, int64_t t) {
  const int hd = a.head_dim;
  const int64_t angles = int64_t(a.rows->pos[t]) * a.rotary_dim;
  rope_queries(a, t);
  const float* k = a.qkv + t * a.ldqkv + a.n_heads * hd;
  const float* v = a.qkv + (t + 1) * a.ldqkv - a.n_kv_heads * hd;
  const HeadRule of_k = head_rule(a, k, a.n_kv_heads, a.k_norm, a.table + angles);
  const int64_t index = a.rows->store[t], lane = index % kSub;
  for (int h = 0; h < a.n_kv_heads; h++) {
    float head[kMaxHeadDim];
    prepare_head(a, k + h * hd, of_k, h, head);
    const SubTile<T> sub = sub_tile<T>(*a.kv, *a.rows, a.rows->seq[t], index, h);
    write_k(head, hd, sub, lane);
    encode_head(prepare_value(a, v + h * hd, head), hd, sub.v + lane * hd, sub.v_scale, lane);
  }
}

void rope_write(const RopeWriteArgs& a) {
  if (!a.kv) {
    for (int64_t t = a.m0; t < a.m1; t++) rope_queries(a, t);
    return;
  }
  with_element(a.kv->dtype, [&](auto element) {
    for (int64_t t = a.m0; t < a.m1; t++) rope_write_token<decltype(element)>(a, t);
  });
}

}  // namespace kvasir::KVASIR_ISA
