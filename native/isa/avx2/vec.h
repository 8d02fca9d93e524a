// The logical vector of 16 lanes on AVX2: two registers, lanes 0-7 and 8-15. Same functions, same bits on
// every level.
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#ifndef KVASIR_ISA  // a level with the same vectors has named itself
#define KVASIR_ISA isa_avx2
#endif
#define KVASIR_INLINE static inline __attribute__((always_inline))

namespace kvasir::KVASIR_ISA {

constexpr int kLanes = 16;
// Register blocks of an outer product: query vectors x logical vectors (16 registers hold 8 logical vectors).
constexpr int kBlockRows = 3;
constexpr int kBlockCols = 2;

struct vf {
  __m256 lo, hi;
};
struct vi {
  __m256i lo, hi;
};
// All ones or zeros in each lane.
struct vm {
  __m256i lo, hi;
};

// Masks of lanes. first(n): lanes < n, any n >= 0. range(b, e): lanes b <= i < e, any b and e.
KVASIR_INLINE vm first(int n) {
  const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), i), _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), i)};
}
KVASIR_INLINE vm range(int b, int e) {
  const vm below = first(b), until = first(e);
  return {_mm256_andnot_si256(below.lo, until.lo), _mm256_andnot_si256(below.hi, until.hi)};
}

KVASIR_INLINE vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVASIR_INLINE vf set1(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
KVASIR_INLINE vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KVASIR_INLINE vf load_n(const float* p, int n) {
  if (n >= 16) return load(p);
  const vm m = first(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
KVASIR_INLINE void store(float* p, vf x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
KVASIR_INLINE void store_n(float* p, vf x, int n) {
  const vm m = first(n);
  _mm256_maskstore_ps(p, m.lo, x.lo);
  _mm256_maskstore_ps(p + 8, m.hi, x.hi);
}

KVASIR_INLINE vf add(vf a, vf b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
KVASIR_INLINE vf sub(vf a, vf b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
KVASIR_INLINE vf mul(vf a, vf b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
KVASIR_INLINE vf div(vf a, vf b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// b where a comparison with NaN fails, as minps and maxps.
KVASIR_INLINE vf vmin(vf a, vf b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
KVASIR_INLINE vf vmax(vf a, vf b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
// a * b + c and c - a * b, rounded once.
KVASIR_INLINE vf fma(vf a, vf b, vf c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
KVASIR_INLINE vf fnma(vf a, vf b, vf c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}

KVASIR_INLINE vm lt(vf a, vf b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
KVASIR_INLINE vf select(vm m, vf a, vf b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

KVASIR_INLINE vi bits(vf a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
KVASIR_INLINE vf from_bits(vi a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
KVASIR_INLINE vi set1i(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
KVASIR_INLINE vi loadi(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
KVASIR_INLINE vi addi(vi a, vi b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
KVASIR_INLINE vi subi(vi a, vi b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
KVASIR_INLINE vi andi(vi a, vi b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
KVASIR_INLINE vi ori(vi a, vi b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
KVASIR_INLINE vi maxi(vi a, vi b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
template <int N>
KVASIR_INLINE vi shl(vi a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
KVASIR_INLINE vi shr(vi a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
// Round half to even; NaN and overflow give INT32_MIN.
KVASIR_INLINE vi to_int(vf a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
KVASIR_INLINE vf to_float(vi a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
KVASIR_INLINE vi load_u8(const uint8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}
// Lanes of 16 bits, values below 65536.
KVASIR_INLINE __m256i narrow16(vi x) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.lo, x.hi), 0xd8);
}
// The low byte of each lane.
KVASIR_INLINE void store_i8(int8_t* p, vi x) {
  const __m256i w = narrow16(andi(x, set1i(0xff)));
  const __m128i b = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), b);
}

KVASIR_INLINE vf widen_bf16(__m256i h) {
  const vi u = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)),
                _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1))};
  return from_bits(shl<16>(u));
}
KVASIR_INLINE vf load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE vf load_bf16_n(const uint16_t* p, int n) {
  uint16_t part[16] = {};
  for (int i = 0; i < n && i < 16; i++) part[i] = p[i];
  return load_bf16(part);
}
KVASIR_INLINE vf widen_f16(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
KVASIR_INLINE vf load_f16(const uint16_t* p) {
  return widen_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE vf load_i8(const int8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return to_float({_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))});
}
// fp8 through half precision: E5M2 is its upper byte; E4M3 has the exponent's bias 8 lower: value / 256.
KVASIR_INLINE vf load_e5m2(const uint8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return widen_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(b), 8));
}
KVASIR_INLINE vf load_e4m3_256th(const uint8_t* p) {
  const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return widen_f16(_mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(int16_t(0xbfff))));
}
KVASIR_INLINE __m256i bf16_half(__m256 x) {
  const __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
  const __m256i bias =
      _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(top, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
// bf16 bits of each lane: nearest even, NaN stays a quiet NaN.
KVASIR_INLINE vi bf16_bits(vf x) { return {bf16_half(x.lo), bf16_half(x.hi)}; }
KVASIR_INLINE void store_bf16(uint16_t* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow16(bf16_bits(x)));
}
KVASIR_INLINE void store_bf16_n(uint16_t* p, vf x, int n) {
  uint16_t part[16];
  store_bf16(part, x);
  for (int i = 0; i < n && i < 16; i++) p[i] = part[i];
}

// The fixed tree: lanes (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1).
KVASIR_INLINE float reduce_add(vf x) {
  const __m256 h8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
KVASIR_INLINE float reduce_max(vf x) {
  const __m256 h8 = _mm256_max_ps(x.lo, x.hi);
  const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
KVASIR_INLINE void reduce_addi(vi a, vi b, int32_t* sums) {  // of the lanes of each
  const __m256i h8 = _mm256_hadd_epi32(_mm256_add_epi32(a.lo, a.hi), _mm256_add_epi32(b.lo, b.hi));
  const __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_hadd_epi32(h4, h4));
}
KVASIR_INLINE int32_t reduce_maxi(vi x) {
  const __m256i h8 = _mm256_max_epi32(x.lo, x.hi);
  const __m128i h4 = _mm_max_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
  const __m128i h2 = _mm_max_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

// One lane alone.
KVASIR_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

}  // namespace kvasir::KVASIR_ISA
