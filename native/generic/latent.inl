// latent_write: norms the latent of each token, rotates its key and the queries' parts that turn, writes the
// entry. Include after vec.h.
#pragma once
#include "generic/rope.inl"

namespace kvasir::KVASIR_ISA {

// to = rotate(x), all of its elements.
KVASIR_INLINE void rotate_whole(const LatentWriteArgs& a, const float* x, const float* angles, float* to) {
  const int half = a.rotary_dim / 2;
  if (a.neox) return rotate_neox(x, angles, angles + half, half, to);
  for (int d = 0; d < a.rotary_dim; d++) to[d] = x[d];
  rotate_interleaved(to, angles, angles + half, half);
}

template <class T>
static void latent_write_token(const LatentWriteArgs& a, int64_t t) {
  const int dim = a.kv->head_dim, latent = a.kv->latent;
  const float *x = a.x + t * a.ldx, *angles = a.table + int64_t(a.rows->pos[t]) * a.rotary_dim;
  for (int h = 0; h < a.n_heads; h++) {
    const int64_t at = t * a.ldq + h * a.rotary_dim;
    rotate_whole(a, a.q + at, angles, a.out + at);
  }
  float entry[kMaxLatentDim];
  const vf inverse = set1(inverse_rms(x, latent, a.eps));
  for (int d = 0; d < latent; d += 16) store(entry + d, mul(mul(load(x + d), inverse), load(a.norm + d)));
  rotate_whole(a, x + latent, angles, entry + latent);
  const int64_t index = a.rows->store[t], lane = index % kSub;
  const SubTile<T> sub = sub_tile<T>(*a.kv, *a.rows, a.rows->seq[t], index, 0);
  encode_head(entry, dim, sub.v + lane * dim, sub.v_scale, lane);
}

void latent_write(const LatentWriteArgs& a) {
  with_element(a.kv->dtype, [&](auto element) {
    for (int64_t t = a.m0; t < a.m1; t++) latent_write_token<decltype(element)>(a, t);
  });
}

}  // namespace kvasir::KVASIR_ISA
