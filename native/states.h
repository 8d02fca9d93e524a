// Arguments of the kernels that keep a state of a sequence; kernels.h has their table.
#pragma once
#include <stdint.h>

#include "enums.h"

namespace kvasir {

// Tokens of one sequence: for the channels [c0, c1) of `width`
//  sum[t] = sum over j of taps[j] * u[t - n_taps + 1 + j], j ascending (mul, then an FMA chain).
// gated: rows are b | c | x, u = b * x, and out = c * sum; else rows are u, and out = silu(sum + bias). What
// stands in front of the first token comes from `before` [n_taps - 1, width], the oldest first, or is zeros
// where it is null; the last ones go to `after`, which may be `before`.
constexpr int kMaxTaps = 8;
struct ShortConvArgs {
  const float* x;  // of the first token
  int64_t ldx;
  float* out;
  int64_t ldo;
  const float* taps;  // [n_taps, width]
  const float* bias;  // [width] or null
  bool gated;
  int32_t width, n_taps, c0, c1;
  int64_t n;  // tokens
  const float* before;
  float* after;
};

// Tokens of one sequence, one after the other: for the heads [h0, h1) a state S [state_dim, head_dim], from
// `before` [n_heads, state_dim, head_dim], or zeros where it is null, to `after`, which may be `before`. Sums
// over state_dim are four FMA chains, of i, i + 4, i + 8 and so on, combined as (0 + 1) + (2 + 3).
//  ssd:   rows x | B | C; d = softplus(step + step_bias) between least and most, g = e^(d * rate):
//         S = fma(B, d * x, g * S); out = fma(skip, x, sum of C * S)
//  delta: rows q | k | v; g = e^(rate * softplus(step + step_bias)); q and k as they are, and iq, ik one over
//         the root of their sum of squares + eps, iq also over the root of state_dim:
//         w = ik * (sigmoid(share) * (v - (ik * g) * (sum of k * S)));
//         S = fma(k, w, g * S); out = iq * (sum of q * S)
//  kda:   as delta, but a step, its bias and a decay for each row i of S, of each head:
//         S = g[i] * S;  w = ik * (sigmoid(share) * (v - ik * (sum of k * S)));
//         S = fma(k, w, S); out = iq * (sum of q * S)
// Of head h the vectors are those of group h / (n_heads / n_groups), tiled: of h % n_groups.
KVASIR_ENUM(ScanRule, ssd, delta, kda);
constexpr int kMaxStateDim = 256;
struct LinearScanArgs {
  ScanRule rule;
  const float* x;  // of the first token, as step, share and out
  int64_t ldx;
  const float *step, *share;
  int64_t ldstep, ldshare;
  const float *step_bias, *rate, *skip;  // [n_heads]; kda: step_bias [n_heads, state_dim]
  float* out;
  int64_t ldo;
  int32_t n_heads, n_groups, state_dim, head_dim, h0, h1;
  bool tiled;
  float least, most, eps;
  int64_t n;  // tokens
  const float* before;
  float* after;
  // Columns of the steps of a token that belong to one head.
  int32_t steps_of_head() const { return rule == ScanRule::kda ? state_dim : 1; }
};

}  // namespace kvasir
