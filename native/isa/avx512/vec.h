// The logical vector of 16 lanes on AVX-512: one register. Every level offers the same functions with the
// same bits.
#pragma once
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#ifndef KVASIR_ISA  // a level with the same vectors has named itself
#define KVASIR_ISA isa_avx512
#endif
#define KVASIR_INLINE static inline __attribute__((always_inline))

namespace kvasir::KVASIR_ISA {

constexpr int kLanes = 16;
// Register blocks of an outer product: query vectors x logical vectors (32 registers, 2 FMA of latency 4).
constexpr int kBlockRows = 6;
constexpr int kBlockCols = 4;

using vf = __m512;
using vi = __m512i;
using vm = __mmask16;

// Masks of lanes. first(n): lanes < n, any n >= 0. range(b, e): lanes b <= i < e, any b and e.
KVASIR_INLINE vm first(int n) { return n >= 16 ? vm(0xffff) : vm((1u << n) - 1); }
KVASIR_INLINE vm range(int b, int e) { return vm(first(e < 0 ? 0 : e) & ~unsigned(first(b < 0 ? 0 : b))); }

KVASIR_INLINE vf zero() { return _mm512_setzero_ps(); }
KVASIR_INLINE vf set1(float x) { return _mm512_set1_ps(x); }
KVASIR_INLINE vf load(const float* p) { return _mm512_loadu_ps(p); }
KVASIR_INLINE vf load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
KVASIR_INLINE void store(float* p, vf x) { _mm512_storeu_ps(p, x); }
KVASIR_INLINE void store_n(float* p, vf x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

KVASIR_INLINE vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
KVASIR_INLINE vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
KVASIR_INLINE vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
KVASIR_INLINE vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
// b where a comparison with NaN fails, as minps and maxps.
KVASIR_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
KVASIR_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
// a * b + c and c - a * b, rounded once.
KVASIR_INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
KVASIR_INLINE vf fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }

KVASIR_INLINE vm lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
KVASIR_INLINE vf select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }

KVASIR_INLINE vi bits(vf a) { return _mm512_castps_si512(a); }
KVASIR_INLINE vf from_bits(vi a) { return _mm512_castsi512_ps(a); }
KVASIR_INLINE vi set1i(int32_t x) { return _mm512_set1_epi32(x); }
KVASIR_INLINE vi loadi(const int32_t* p) { return _mm512_loadu_si512(p); }
KVASIR_INLINE vi addi(vi a, vi b) { return _mm512_add_epi32(a, b); }
KVASIR_INLINE vi subi(vi a, vi b) { return _mm512_sub_epi32(a, b); }
KVASIR_INLINE vi andi(vi a, vi b) { return _mm512_and_si512(a, b); }
KVASIR_INLINE vi ori(vi a, vi b) { return _mm512_or_si512(a, b); }
KVASIR_INLINE vi maxi(vi a, vi b) { return _mm512_max_epi32(a, b); }
template <int N>
KVASIR_INLINE vi shl(vi a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
KVASIR_INLINE vi shr(vi a) {
  return _mm512_srli_epi32(a, N);
}
// Round half to even; NaN and overflow give INT32_MIN.
KVASIR_INLINE vi to_int(vf a) {
  return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
KVASIR_INLINE vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
KVASIR_INLINE vi load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
// The low byte of each lane.
KVASIR_INLINE void store_i8(int8_t* p, vi x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}

KVASIR_INLINE vf widen_bf16(__m256i h) { return from_bits(shl<16>(_mm512_cvtepu16_epi32(h))); }
KVASIR_INLINE vf load_bf16(const uint16_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE vf load_bf16_n(const uint16_t* p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
}
KVASIR_INLINE vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE vf load_i8(const int8_t* p) {
  return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// fp8 through half precision: E5M2 is its upper byte; E4M3 has the exponent's bias 8 lower: value / 256.
KVASIR_INLINE vf load_e5m2(const uint8_t* p) {
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(b), 8));
}
KVASIR_INLINE vf load_e4m3_256th(const uint8_t* p) {
  const __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(w, 7), _mm256_set1_epi16(int16_t(0xbfff))));
}
// bf16 bits of each lane: nearest even, NaN stays a quiet NaN.
KVASIR_INLINE vi bf16_bits(vf x) {
  const vi u = bits(x);
  const vi rounded = shr<16>(addi(addi(u, set1i(0x7fff)), andi(shr<16>(u), set1i(1))));
  const vm nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, shr<16>(u), set1i(0x40));
}
KVASIR_INLINE void store_bf16(uint16_t* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(x)));
}
KVASIR_INLINE void store_bf16_n(uint16_t* p, vf x, int n) {
  _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(bf16_bits(x)));
}

// The fixed tree: lanes (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1).
KVASIR_INLINE float reduce_add(vf x) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
KVASIR_INLINE float reduce_max(vf x) {
  const __m256 h8 = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
KVASIR_INLINE void reduce_addi(vi a, vi b, int32_t* sums) {  // of the lanes of each
  const auto half = [](vi x) {
    return _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
  };
  const __m256i h8 = _mm256_hadd_epi32(half(a), half(b));
  const __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(sums), _mm_hadd_epi32(h4, h4));
}
KVASIR_INLINE int32_t reduce_maxi(vi x) { return _mm512_reduce_max_epi32(x); }

// One lane alone.
KVASIR_INLINE float fma1(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

}  // namespace kvasir::KVASIR_ISA
