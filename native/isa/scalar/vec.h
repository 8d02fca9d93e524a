// The logical vector of 16 lanes as an array: the readable definition of what the other levels compute.
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define KVASIR_ISA isa_scalar
// Kernels become calls where the compiler wants them, loops over lanes stay loops: all inlined and unrolled,
// attention.cpp alone was 1.5 MB of code that took a minute and more (gcc 12, Zen 4).
#define KVASIR_INLINE static inline
#define KVASIR_LANES static inline __attribute__((always_inline))

namespace kvasir::isa_scalar {

constexpr int kLanes = 16;
// Register blocks of an outer product: query vectors x logical vectors.
constexpr int kBlockRows = 1;
constexpr int kBlockCols = 1;

struct vf {
  float v[16];
};
struct vi {
  int32_t v[16];
};
struct vm {
  bool v[16];
};

template <class R, class F>
KVASIR_LANES R lanes(F f) {
  R r;
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) r.v[i] = f(i);
  return r;
}

// Masks of lanes. first(n): lanes < n, any n >= 0. range(b, e): lanes b <= i < e, any b and e.
KVASIR_LANES vm range(int b, int e) {
  return lanes<vm>([&](int i) { return i >= b && i < e; });
}
KVASIR_LANES vm first(int n) { return range(0, n); }

KVASIR_LANES vf set1(float x) {
  return lanes<vf>([&](int) { return x; });
}
KVASIR_LANES vf zero() { return set1(0.0f); }
KVASIR_LANES vf load(const float* p) {
  return lanes<vf>([&](int i) { return p[i]; });
}
KVASIR_LANES vf load_n(const float* p, int n) {
  return lanes<vf>([&](int i) { return i < n ? p[i] : 0.0f; });
}
KVASIR_LANES void store_n(float* p, vf x, int n) {
#pragma GCC unroll 1
  for (int i = 0; i < 16 && i < n; i++) p[i] = x.v[i];
}
KVASIR_LANES void store(float* p, vf x) { store_n(p, x, 16); }

KVASIR_LANES vf add(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] + b.v[i]; });
}
KVASIR_LANES vf sub(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] - b.v[i]; });
}
KVASIR_LANES vf mul(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] * b.v[i]; });
}
KVASIR_LANES vf div(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] / b.v[i]; });
}
// b where a comparison with NaN fails, as minps and maxps.
KVASIR_LANES vf vmin(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
KVASIR_LANES vf vmax(vf a, vf b) {
  return lanes<vf>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// One lane alone: libm's fmaf rounds once, with or without the instruction.
KVASIR_LANES float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
// a * b + c and c - a * b, rounded once.
KVASIR_LANES vf fma(vf a, vf b, vf c) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i++) c.v[i] = fma1(a.v[i], b.v[i], c.v[i]);
  return c;
}
KVASIR_LANES vf fnma(vf a, vf b, vf c) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; i++) c.v[i] = fma1(-a.v[i], b.v[i], c.v[i]);
  return c;
}

KVASIR_LANES vm lt(vf a, vf b) {
  return lanes<vm>([&](int i) { return a.v[i] < b.v[i]; });
}
KVASIR_LANES vf select(vm m, vf a, vf b) {
  return lanes<vf>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}

KVASIR_LANES vi bits(vf a) { return __builtin_bit_cast(vi, a); }
KVASIR_LANES vf from_bits(vi a) { return __builtin_bit_cast(vf, a); }
KVASIR_LANES vi set1i(int32_t x) {
  return lanes<vi>([&](int) { return x; });
}
KVASIR_LANES vi loadi(const int32_t* p) {
  return lanes<vi>([&](int i) { return p[i]; });
}
KVASIR_LANES vi addi(vi a, vi b) {
  return lanes<vi>([&](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); });
}
KVASIR_LANES vi subi(vi a, vi b) {
  return lanes<vi>([&](int i) { return int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); });
}
KVASIR_LANES vi andi(vi a, vi b) {
  return lanes<vi>([&](int i) { return a.v[i] & b.v[i]; });
}
KVASIR_LANES vi ori(vi a, vi b) {
  return lanes<vi>([&](int i) { return a.v[i] | b.v[i]; });
}
KVASIR_LANES vi maxi(vi a, vi b) {
  return lanes<vi>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
template <int N>
KVASIR_LANES vi shl(vi a) {
  return lanes<vi>([&](int i) { return int32_t(uint32_t(a.v[i]) << N); });
}
template <int N>
KVASIR_LANES vi shr(vi a) {
  return lanes<vi>([&](int i) { return int32_t(uint32_t(a.v[i]) >> N); });
}
// Round half to even; NaN and overflow give INT32_MIN.
KVASIR_LANES vi to_int(vf a) {
  return lanes<vi>([&](int i) { return _mm_cvtss_si32(_mm_set_ss(a.v[i])); });
}
KVASIR_LANES vf to_float(vi a) {
  return lanes<vf>([&](int i) { return float(a.v[i]); });
}
KVASIR_LANES vi load_u8(const uint8_t* p) {
  return lanes<vi>([&](int i) { return int32_t(p[i]); });
}
// The low byte of each lane.
KVASIR_LANES void store_i8(int8_t* p, vi x) {
#pragma GCC unroll 1
  for (int i = 0; i < 16; i++) p[i] = int8_t(uint8_t(x.v[i]));
}

KVASIR_LANES vf load_bf16_n(const uint16_t* p, int n) {
  return from_bits(lanes<vi>([&](int i) { return i < n ? int32_t(uint32_t(p[i]) << 16) : 0; }));
}
KVASIR_LANES vf load_bf16(const uint16_t* p) { return load_bf16_n(p, 16); }
KVASIR_LANES float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  // Subnormals and zero: the mantissa counts units of 2^-24; else rebias the exponent, all ones staying all
  // ones.
  const float small = float(int32_t(rest)) * 0x1p-24f;
  const uint32_t normal = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
  return __builtin_bit_cast(float, sign | (rest < 0x0400 ? __builtin_bit_cast(uint32_t, small) : normal));
}
KVASIR_LANES vf load_f16(const uint16_t* p) {
  return lanes<vf>([&](int i) { return f16_to_f32(p[i]); });
}
KVASIR_LANES vf load_i8(const int8_t* p) {
  return lanes<vf>([&](int i) { return float(p[i]); });
}
// fp8 through half precision: E5M2 is its upper byte; E4M3 has the exponent's bias 8 lower: value / 256.
KVASIR_LANES vf load_e5m2(const uint8_t* p) {
  return lanes<vf>([&](int i) { return f16_to_f32(uint16_t(p[i] << 8)); });
}
KVASIR_LANES vf load_e4m3_256th(const uint8_t* p) {
  return lanes<vf>([&](int i) { return f16_to_f32(uint16_t((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7)); });
}
// bf16 bits of each lane: nearest even, NaN stays a quiet NaN.
KVASIR_LANES vi bf16_bits(vf x) {
  return lanes<vi>([&](int i) {
    const uint32_t u = __builtin_bit_cast(uint32_t, x.v[i]);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return int32_t((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40 : rounded);
  });
}
KVASIR_LANES void store_bf16_n(uint16_t* p, vf x, int n) {
  const vi b = bf16_bits(x);
#pragma GCC unroll 1
  for (int i = 0; i < 16 && i < n; i++) p[i] = uint16_t(b.v[i]);
}
KVASIR_LANES void store_bf16(uint16_t* p, vf x) { store_bf16_n(p, x, 16); }

// The fixed tree: lanes (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1).
KVASIR_LANES float reduce_add(vf x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x.v[i] = x.v[i] + x.v[i + half];
  return x.v[0];
}
KVASIR_LANES float reduce_max(vf x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x.v[i] = x.v[i] > x.v[i + half] ? x.v[i] : x.v[i + half];
  return x.v[0];
}
KVASIR_LANES void reduce_addi(vi a, vi b, int32_t* sums) {  // of the lanes of each
  uint32_t of_a = 0, of_b = 0;
  for (int i = 0; i < 16; i++) of_a += uint32_t(a.v[i]), of_b += uint32_t(b.v[i]);
  sums[0] = int32_t(of_a);
  sums[1] = int32_t(of_b);
}
KVASIR_LANES int32_t reduce_maxi(vi x) {
  int32_t best = x.v[0];
  for (int i = 1; i < 16; i++) best = x.v[i] > best ? x.v[i] : best;
  return best;
}

}  // namespace kvasir::isa_scalar
