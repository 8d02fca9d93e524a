// add, scale, gate_rows, mul, spread, combine: independent elements. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

// out[n] = f(lanes of column n ...) for the columns of one row.
template <class F>
KVASIR_INLINE void each_column(float* out, int N, const F& f) {
  const int full = N & ~15;
  for (int n = 0; n < full; n += 16) store(out + n, f(n, 16));
  if (full < N) store_n(out + full, f(full, N - full), N - full);
}

void add_rows(const AddArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float *x = a.a + m * a.ld, *y = a.b + m * a.ld;
    each_column(a.out + m * a.ld, a.N,
                [&](int n, int count) { return add(load_n(x + n, count), load_n(y + n, count)); });
  }
}

void scale_rows(const ScaleArgs& a) {
  const vf factor = set1(a.scale), cap = set1(a.softcap);
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float* x = a.x + m * a.ld;
    float* out = a.out + m * a.ld;
    if (a.softcap > 0.0f) {
      each_column(out, a.N,
                  [&](int n, int count) { return softcap(mul(load_n(x + n, count), factor), cap); });
    } else {
      each_column(out, a.N, [&](int n, int count) { return mul(load_n(x + n, count), factor); });
    }
  }
}

void gate_rows(const GateRowsArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const vf gate = set1(a.gate[m]);
    const float* x = a.x + m * a.ld;
    each_column(a.out + m * a.ld, a.N,
                [&](int n, int count) { return sigmoid_times(load_n(x + n, count), gate); });
  }
}

void mul_rows(const MulArgs& a) {
  for (int64_t m = a.m0; m < a.m1; m++) {
    const float *x = a.x + m * a.ld, *y = a.y + m * a.ldy;
    each_column(a.out + m * a.ld, a.N,
                [&](int n, int count) { return mul(load_n(x + n, count), load_n(y + n, count)); });
  }
}

void spread(const SpreadArgs& a) {
  for (int64_t t = a.m0; t < a.m1; t++) {
    const float* x = a.x + t * a.ld;
    for (int r = 0; r < a.k; r++) {
      const int64_t pair = t * a.k + r;
      const vf weight = set1(a.weights[pair]);
      each_column(a.out + a.row[pair] * a.ld, a.N,
                  [&](int n, int count) { return mul(load_n(x + n, count), weight); });
    }
  }
}

void combine(const CombineArgs& a) {
  for (int64_t t = a.m0; t < a.m1; t++) {
    const int64_t pair = t * a.k;
    each_column(a.out + t * a.ldo, a.N, [&](int n, int count) {
      vf sum = zero();
      for (int r = 0; r < a.k; r++) {
        const int64_t row = a.row ? a.row[pair + r] : pair + r;
        const float weight = a.weights ? a.weights[pair + r] : 1.0f;
        sum = fma(set1(weight), load_n(a.y + row * a.ldy + n, count), sum);
      }
      return sum;
    });
  }
}

}  // namespace kvasir::KVASIR_ISA
