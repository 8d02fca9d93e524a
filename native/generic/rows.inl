// norm, layer_norm and cast: rows of f32 to rows of f32, bf16 or q8; sparse_gate. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

// A source gives lanes k .. k+15 of a row, zeros past its end: source(k, n_valid).

// One activation block to int8: scale = max|x| / 127, q = round(x * (127 / max|x|)). The maximum is taken
// over the bits of |x|, whose order is that of the numbers with infinity and NaN on top: a row that is not
// finite gets a scale that is not finite, so that it cannot pass for a small one.
template <class Source>
KVASIR_INLINE float quantize_block(const Source& source, int k0, int n, int8_t* q, int32_t* sums) {
  vi top = set1i(0);
  for (int k = k0; k < k0 + n; k += 16) top = maxi(top, andi(bits(source(k, 16)), set1i(0x7fffffff)));
  const float amax = __builtin_bit_cast(float, reduce_maxi(top));
  const float scale = amax / 127.0f;
  const vf inverse = set1(amax > 0.0f ? 127.0f / amax : 0.0f);
  for (int g = 0; g < n; g += kGroup) {
    const vi lower = to_int(mul(source(k0 + g, 16), inverse));
    const vi upper = to_int(mul(source(k0 + g + 16, 16), inverse));
    store_i8(q + g, lower);
    store_i8(q + g + 16, upper);
    reduce_addi(addi(lower, upper), lower, sums + g / kGroup * 2);
  }
  return scale;
}

template <class Source>
KVASIR_INLINE void write_q8(const Rows& out, int64_t m, int column, int K, const Source& source) {
  int8_t* q = static_cast<int8_t*>(out.data) + m * out.ld + column;
  int32_t* sums = out.sums + (m * out.ld + column) / kGroup * 2;
  float* scales = out.scales + (m * out.ld + column) / out.block;
  for (int k = 0; k < K; k += out.block)
    scales[k / out.block] = quantize_block(source, k, out.block, q + k, sums + k / kGroup * 2);
}

// Columns [column, column + K) of row m.
template <class Source>
KVASIR_INLINE void write_row(const Rows& out, int64_t m, int column, int K, const Source& source) {
  const int full = K & ~15, rest = K & 15;
  if (out.dtype == DType::q8) {
    write_q8(out, m, column, K, source);
  } else if (out.dtype == DType::bf16) {
    uint16_t* y = static_cast<uint16_t*>(out.data) + m * out.ld + column;
    for (int k = 0; k < full; k += 16) store_bf16(y + k, source(k, 16));
    if (rest) store_bf16_n(y + full, source(full, rest), rest);
  } else {
    float* y = static_cast<float*>(out.data) + m * out.ld + column;
    for (int k = 0; k < full; k += 16) store(y + k, source(k, 16));
    if (rest) store_n(y + full, source(full, rest), rest);
  }
}

// 1 / sqrt(mean(x^2) + eps): 16 chains of FMA, the tree, then division and square root, both correctly
// rounded.
KVASIR_INLINE float inverse_rms(const float* x, int K, float eps) {
  vf squares = zero();
  for (int k = 0; k < K; k += 16) {
    const vf v = load_n(x + k, K - k);
    squares = fma(v, v, squares);
  }
  return 1.0f / __builtin_sqrtf(reduce_add(squares) / float(K) + eps);
}

void norm(const NormArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float* x = a.x + m * a.ldx;
    const vf inverse = set1(inverse_rms(x, a.K, a.eps));
    if (a.weight) {
      write_row(a.out, m, 0, a.K,
                [&](int k, int n) { return mul(mul(load_n(x + k, n), inverse), load_n(a.weight + k, n)); });
    } else {
      write_row(a.out, m, 0, a.K, [&](int k, int n) { return mul(load_n(x + k, n), inverse); });
    }
  }
}

KVASIR_INLINE float mean_of(const float* x, int K) {
  vf sum = zero();
  for (int k = 0; k < K; k += 16) sum = add(sum, load_n(x + k, K - k));
  return reduce_add(sum) / float(K);
}

// mean((x - mean)^2), as in inverse_rms; lanes past K differ from the mean by nothing.
KVASIR_INLINE float variance_of(const float* x, int K, vf mean) {
  vf squares = zero();
  for (int k = 0; k < K; k += 16) {
    const vf d = select(first(K - k), sub(load_n(x + k, K - k), mean), zero());
    squares = fma(d, d, squares);
  }
  return reduce_add(squares) / float(K);
}

KVASIR_INLINE float inverse_deviation(const float* x, int K, vf mean, float eps) {
  return 1.0f / __builtin_sqrtf(variance_of(x, K, mean) + eps);
}

void layer_norm(const NormArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float* x = a.x + m * a.ldx;
    const vf mean = set1(mean_of(x, a.K)), inverse = set1(inverse_deviation(x, a.K, mean, a.eps));
    const auto scaled = [&](int k, int n) { return mul(sub(load_n(x + k, n), mean), inverse); };
    if (a.bias) {
      write_row(a.out, m, 0, a.K, [&](int k, int n) {
        return fma(scaled(k, n), load_n(a.weight + k, n), load_n(a.bias + k, n));
      });
    } else {
      write_row(a.out, m, 0, a.K, [&](int k, int n) { return mul(scaled(k, n), load_n(a.weight + k, n)); });
    }
  }
}

void cast(const CastArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float* x = a.x + (m - a.m0) * a.ldx;
    write_row(a.out, m, a.column, a.K, [&](int k, int n) { return load_n(x + k, n); });
  }
}

void sparse_gate(const SparseGateArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float *x = a.x + m * a.ld, *up = a.up + m * a.ld;
    float* out = a.out + m * a.ld;
    const float mean = mean_of(x, a.N);
    const vf cut = set1(mean + a.deviations * __builtin_sqrtf(variance_of(x, a.N, set1(mean))));
    for (int n = 0; n < a.N; n += 16) {
      const int count = a.N - n < 16 ? a.N - n : 16;
      const vf gate = vmax(zero(), sub(load_n(x + n, count), cut));
      store_n(out + n, gated(a.act, gate, load_n(up + n, count)), count);
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
