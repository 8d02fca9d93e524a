// route: scores, then the k experts of the best. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

constexpr float kOut = __builtin_nanf("");  // of an expert or a group that can no longer be chosen

// Logits e .. e+15, minus infinity past the last expert.
KVASIR_INLINE vf expert_lanes(const float* x, int e, int n_experts) {
  return select(first(n_experts - e), load_n(x + e, n_experts - e), set1(-__builtin_inff()));
}

KVASIR_INLINE void softmax_scores(const float* x, int n, float* scores) {
  vf max = set1(-__builtin_inff());
  for (int e = 0; e < n; e += 16) max = vmax(max, expert_lanes(x, e, n));
  max = set1(reduce_max(max));
  vf sum = zero();
  for (int e = 0; e < n; e += 16) {
    const vf each = exp(sub(expert_lanes(x, e, n), max));
    store(scores + e, each);
    sum = add(sum, each);
  }
  const vf total = set1(reduce_add(sum));
  for (int e = 0; e < n; e += 16) store(scores + e, div(load(scores + e), total));
}

KVASIR_INLINE void logits_as_scores(const float* x, int n, float* scores) {
  for (int e = 0; e < n; e += 16) store(scores + e, expert_lanes(x, e, n));
}

KVASIR_INLINE float weight_of(const RouteArgs& a, float score) {
  if (a.score != Score::late_sigmoid) return score;
  float lanes[16];
  store(lanes, sigmoid_times(set1(1.0f), set1(score)));
  return lanes[0];
}

KVASIR_INLINE void sigmoid_scores(const float* x, int n, float* scores) {
  for (int e = 0; e < n; e += 16) store(scores + e, sigmoid_times(set1(1.0f), expert_lanes(x, e, n)));
}

// What experts are chosen by. False where one is not finite: then they have no order.
KVASIR_INLINE bool choices(const RouteArgs& a, const float* scores, float* choice) {
  vf rest = zero();
  for (int e = 0; e < a.n_experts; e += 16) {
    vf c = load(scores + e);
    if (a.bias) c = add(c, load_n(a.bias + e, a.n_experts - e));
    store(choice + e, c);
    rest = add(rest, select(first(a.n_experts - e), sub(c, c), zero()));
  }
  return reduce_add(rest) == 0.0f;
}

// The first of the largest of n values that are not out; one at least is not.
KVASIR_INLINE int best_of(const float* x, int n) {
  int best = -1;
  for (int i = 0; i < n; i++)
    if (x[i] == x[i] && (best < 0 || x[i] > x[best])) best = i;
  return best;
}

KVASIR_INLINE float score_of_group(GroupScore rule, float* x, int size) {
  const int best = best_of(x, size);
  const float largest = x[best];
  if (rule == GroupScore::best) return largest;
  x[best] = kOut;
  const float second = x[best_of(x, size)];
  x[best] = largest;
  return largest + second;
}

// Experts outside the best groups are out.
KVASIR_INLINE void keep_groups(const RouteArgs& a, float* choice) {
  const int size = a.n_experts / a.n_groups;
  float scores[kMaxExperts];
  for (int g = 0; g < a.n_groups; g++) scores[g] = score_of_group(a.group_score, choice + g * size, size);
  for (int r = 0; r < a.top_groups; r++) scores[best_of(scores, a.n_groups)] = kOut;
  for (int g = 0; g < a.n_groups; g++)
    for (int i = 0; scores[g] == scores[g] && i < size; i++) choice[g * size + i] = kOut;
}

KVASIR_INLINE void route_token(const RouteArgs& a, const float* x, int32_t* ids, float* weights) {
  float scores[kMaxExperts], choice[kMaxExperts];
  if (a.score == Score::softmax)
    softmax_scores(x, a.n_experts, scores);
  else if (a.score == Score::sigmoid)
    sigmoid_scores(x, a.n_experts, scores);
  else
    logits_as_scores(x, a.n_experts, scores);
  const bool ordered = choices(a, scores, choice);
  if (ordered && a.n_groups > 1) keep_groups(a, choice);
  float chosen = 0.0f;
  for (int r = 0; r < a.k; r++) {
    // Without an order: any valid ids, and weights that say so.
    const int id = ordered ? best_of(choice, a.n_experts) : r;
    ids[r] = id;
    weights[r] = ordered ? weight_of(a, scores[id]) : kOut;
    choice[id] = kOut;
    chosen = chosen + weights[r];
  }
  const float divisor = a.normalize ? chosen + 1e-20f : 1.0f;
  for (int r = 0; r < a.k; r++) weights[r] = weights[r] / divisor * a.scale;
}

void route(const RouteArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++)
    route_token(a, a.logits + m * a.ld, a.ids + m * a.k, a.weights + m * a.k);
}

}  // namespace kvasir::KVASIR_ISA
