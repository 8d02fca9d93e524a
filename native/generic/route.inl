// route: softmax over all experts, then the k likeliest. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

// Logits e .. e+15, minus infinity past the last expert.
KVASIR_INLINE vf expert_lanes(const float* x, int e, int n_experts) {
  return select(first(n_experts - e), load_n(x + e, n_experts - e), set1(-__builtin_inff()));
}

// The expert that follows (probability, id) in the order (probability descending, id ascending).
// Probabilities are recomputed: k passes need no memory, and n_experts is small.
KVASIR_INLINE int32_t next_expert(const RouteArgs& a, const float* x, vf max, vf sum, float& probability,
                                  int32_t id) {
  float best = -1.0f;
  int32_t best_id = -1;
  for (int e = 0; e < a.n_experts; e += 16) {
    float p[16];
    store(p, div(exp(sub(expert_lanes(x, e, a.n_experts), max)), sum));
    for (int i = 0; i < 16 && e + i < a.n_experts; i++) {
      const bool follows = p[i] < probability || (p[i] == probability && e + i > id);
      if (follows && p[i] > best) {
        best = p[i];
        best_id = e + i;
      }
    }
  }
  probability = best;
  return best_id;
}

KVASIR_INLINE void route_token(const RouteArgs& a, const float* x, int32_t* ids, float* weights) {
  vf max = set1(-__builtin_inff());
  for (int e = 0; e < a.n_experts; e += 16) max = vmax(max, expert_lanes(x, e, a.n_experts));
  max = set1(reduce_max(max));
  vf sum = zero();
  for (int e = 0; e < a.n_experts; e += 16) sum = add(sum, exp(sub(expert_lanes(x, e, a.n_experts), max)));
  const float total = reduce_add(sum);
  float probability = 2.0f, chosen = 0.0f;
  int32_t id = -1;
  for (int r = 0; r < a.k; r++) {
    if (total == total) id = next_expert(a, x, max, set1(total), probability, id);
    // Logits that are not finite have no order: any valid ids, and weights that say so.
    ids[r] = total == total ? id : r;
    weights[r] = total == total ? probability : total;
    chosen = chosen + weights[r];
  }
  if (a.normalize)
    for (int r = 0; r < a.k; r++) weights[r] = weights[r] / chosen;
}

void route(const RouteArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++)
    route_token(a, a.logits + m * a.ld, a.ids + m * a.k, a.weights + m * a.k);
}

}  // namespace kvasir::KVASIR_ISA
