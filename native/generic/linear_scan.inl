// linear_scan: 16 columns of a head's state at a time, token after token. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"
#include "generic/rows.inl"

namespace kvasir::KVASIR_ISA {

constexpr int kScanTokens = 16;  // whose factors are computed together, a token in each lane

// What a head's tokens have in all columns.
struct ScanFactors {
  float decay[kScanTokens];                  // ssd, delta
  float first[kScanTokens];                  // ssd: d; else the share of what is added
  float key[kScanTokens];                    // else than ssd: one over the length of k
  float query[kScanTokens];                  // of q, and over the root of state_dim
  const float *in, *out;                     // of the first token: B and C, or k and q
  float decays[kScanTokens * kMaxStateDim];  // kda: of each row of the state
};

KVASIR_INLINE vf lanes_of(const float* x, int64_t ld, int n) {
  float lanes[kScanTokens] = {};
  for (int t = 0; t < n; t++) lanes[t] = x[t * ld];
  return load(lanes);
}

KVASIR_INLINE float inverse_length(const float* x, int n, float eps) {
  vf squares = zero();
  for (int i = 0; i < n; i += 16) {
    const vf v = load_n(x + i, n - i);
    squares = fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(reduce_add(squares) + eps);
}

// Of each row of a head's state, for n tokens from m on.
KVASIR_INLINE void row_decays(const LinearScanArgs& a, int h, int64_t m, int n, float* decays) {
  const float *bias = a.step_bias + int64_t(h) * a.state_dim, rate = a.rate[h];
  for (int t = 0; t < n; t++) {
    const float* step = a.step + (m + t) * a.ldstep + int64_t(h) * a.state_dim;
    for (int i = 0; i < a.state_dim; i += 16) {
      const int count = a.state_dim - i < 16 ? a.state_dim - i : 16;
      const vf one = softplus(add(load_n(step + i, count), load_n(bias + i, count)));
      store_n(decays + t * kMaxStateDim + i, exp(mul(one, set1(rate))), count);
    }
  }
}

// Of n tokens from m on.
KVASIR_INLINE void scan_factors(const LinearScanArgs& a, int h, int64_t m, int n, ScanFactors& f) {
  const int group = a.tiled ? h % a.n_groups : h / (a.n_heads / a.n_groups);
  const int64_t vectors = int64_t(a.n_groups) * a.state_dim;
  const float* first = a.x + m * a.ldx + int64_t(group) * a.state_dim;
  if (a.rule == ScanRule::kda) {
    row_decays(a, h, m, n, f.decays);
  } else {
    vf step = softplus(add(lanes_of(a.step + m * a.ldstep + h, a.ldstep, n), set1(a.step_bias[h])));
    if (a.rule == ScanRule::ssd) {
      step = vmin(set1(a.most), vmax(set1(a.least), step));
      store(f.first, step);
    }
    store(f.decay, exp(mul(step, set1(a.rate[h]))));
  }
  if (a.rule == ScanRule::ssd) {
    first += int64_t(a.n_heads) * a.head_dim;
    f.in = first;
    f.out = first + vectors;
  } else {
    store(f.first, sigmoid_times(set1(1.0f), lanes_of(a.share + m * a.ldshare + h, a.ldshare, n)));
    f.in = first + vectors;
    f.out = first;
    const float root = __builtin_sqrtf(float(a.state_dim));
    for (int t = 0; t < n; t++) {
      f.key[t] = inverse_length(f.in + t * a.ldx, a.state_dim, a.eps);
      f.query[t] = inverse_length(f.out + t * a.ldx, a.state_dim, a.eps) / root;
    }
  }
}

// each(i, chain): of four chains, for all i < n.
template <class Each>
KVASIR_INLINE vf four_chains(int n, const Each& each) {
  vf sum[4] = {zero(), zero(), zero(), zero()};
  const int whole = n & ~3;
  for (int i = 0; i < whole; i += 4) {
    sum[0] = each(i, sum[0]);
    sum[1] = each(i + 1, sum[1]);
    sum[2] = each(i + 2, sum[2]);
    sum[3] = each(i + 3, sum[3]);
  }
  for (int i = whole; i < n; i++) sum[i - whole] = each(i, sum[i - whole]);
  return add(add(sum[0], sum[1]), add(sum[2], sum[3]));
}

// S = fma(in, added, left(S)) for all rows i of `tile`; the sum of out * S.
template <class Left>
KVASIR_INLINE vf scan_step(float* tile, int n, const float* in, const float* out, vf added,
                           const Left& left) {
  return four_chains(n, [&](int i, vf sum) __attribute__((always_inline)) {
    const vf s = fma(set1(in[i]), added, left(load(tile + 16 * i)));
    store(tile + 16 * i, s);
    return fma(set1(out[i]), s, sum);
  });
}

// S = decay * S, row by row; the sum of in * S.
KVASIR_INLINE vf decay_rows(float* tile, int n, const float* in, const float* decay) {
  return four_chains(n, [&](int i, vf sum) __attribute__((always_inline)) {
    const vf s = mul(set1(decay[i]), load(tile + 16 * i));
    store(tile + 16 * i, s);
    return fma(set1(in[i]), s, sum);
  });
}

// A delta rule's token whose value is x: of what the key is said to hold.
KVASIR_INLINE vf added_by(const ScanFactors& f, int t, vf x, float key, vf held) {
  const vf change = mul(set1(f.first[t]), sub(x, mul(set1(key), held)));
  return mul(set1(f.key[t]), change);
}

KVASIR_INLINE vf scan_token(const LinearScanArgs& a, const ScanFactors& f, int h, int t, float* tile, vf x) {
  const float *in = f.in + t * a.ldx, *out = f.out + t * a.ldx;
  if (a.rule == ScanRule::kda) {
    const vf held = decay_rows(tile, a.state_dim, in, f.decays + t * kMaxStateDim);
    const vf sum = scan_step(tile, a.state_dim, in, out, added_by(f, t, x, f.key[t], held),
                             [](vf s) __attribute__((always_inline)) { return s; });
    return mul(set1(f.query[t]), sum);
  }
  const vf decay = set1(f.decay[t]);
  const auto left = [&](vf s) __attribute__((always_inline)) { return mul(decay, s); };
  if (a.rule == ScanRule::ssd) {
    const vf sum = scan_step(tile, a.state_dim, in, out, mul(set1(f.first[t]), x), left);
    return fma(set1(a.skip[h]), x, sum);
  }
  const vf held = four_chains(a.state_dim, [&](int i, vf sum) __attribute__((always_inline)) {
    return fma(set1(in[i]), load(tile + 16 * i), sum);
  });
  const vf added = added_by(f, t, x, f.key[t] * f.decay[t], held);
  return mul(set1(f.query[t]), scan_step(tile, a.state_dim, in, out, added, left));
}

KVASIR_INLINE void scan_columns(const LinearScanArgs& a, const ScanFactors& f, const float* before, int h,
                                int64_t m, int n, int p) {
  const int count = a.head_dim - p < 16 ? a.head_dim - p : 16;
  const int64_t state = int64_t(h) * a.state_dim * a.head_dim + p, column = int64_t(h) * a.head_dim + p;
  const int64_t values = a.rule == ScanRule::ssd ? 0 : 2 * int64_t(a.n_groups) * a.state_dim;
  alignas(64) float tile[16 * kMaxStateDim];
  for (int i = 0; i < a.state_dim; i++)
    store(tile + 16 * i, before ? load_n(before + state + int64_t(i) * a.head_dim, count) : zero());
  for (int t = 0; t < n; t++) {
    const vf x = load_n(a.x + (m + t) * a.ldx + values + column, count);
    store_n(a.out + (m + t) * a.ldo + column, scan_token(a, f, h, t, tile, x), count);
  }
  for (int i = 0; i < a.state_dim; i++)
    store_n(a.after + state + int64_t(i) * a.head_dim, load(tile + 16 * i), count);
}

void linear_scan(const LinearScanArgs& a) {
  for (int64_t m = 0; m < a.n; m += kScanTokens) {
    const int n = a.n - m < kScanTokens ? int(a.n - m) : kScanTokens;
    for (int h = a.h0; h < a.h1; h++) {
      ScanFactors f;
      scan_factors(a, h, m, n, f);
      for (int p = 0; p < a.head_dim; p += 16) scan_columns(a, f, m ? a.after : a.before, h, m, n, p);
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
