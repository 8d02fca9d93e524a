// Linears with vpmaddubsw. Four-bit weights: eight products of at most 15 x 127 x 2 fit in int16 (30,480), so
// pairs are summed there first. Eight-bit weights: |w| x sign(a, w) never saturates (128 x 127 x 2 = 32,512).
#include "isa/avx2/vec.h"
//
#include "generic/level.inl"
#include "isa/avx2/codes.h"

namespace kvasir::isa_avx2 {

constexpr int kIntRows = 4, kFloatRows = 4;
constexpr bool kPanels = true;

}  // namespace kvasir::isa_avx2

#include "isa/avx2/unpack.inl"
//
#include "isa/avx2/words.inl"

namespace kvasir::isa_avx2 {

KVASIR_INLINE __m256i dot4(const Unpacked& u, const int32_t* q, int h) {
  __m256i sum = _mm256_setzero_si256();
  for (int j = 0; j < 8; j++)
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u.w[j][h], _mm256_set1_epi32(q[j])));
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

// Registers whose products are summed in int16: |w| <= 32 leaves room for four, 128 for one.
template <int Sums, int From, int To>
KVASIR_INLINE __m256i dot8(const Unpacked& u, const int32_t* q, int h) {
  __m256i sum = _mm256_setzero_si256();
  for (int j = From; j < To; j += Sums) {
    __m256i p = _mm256_setzero_si256();
    for (int i = j; i < j + Sums; i++) {
      const __m256i w = u.w[i][h];
      p = _mm256_add_epi16(
          p, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(q[i]), w)));
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
  }
  return sum;
}

template <int Bits, int From, int To>
KVASIR_INLINE __m256i dot_half(const Unpacked& u, const int32_t* q, int h) {
  if constexpr (Bits == 4) {
    static_assert(From == 0 && To == 8);
    return dot4(u, q, h);
  } else {
    return dot8<Bits == 6 ? 4 : 1, From, To>(u, q, h);
  }
}

template <int Bits, int From, int To>
KVASIR_INLINE vf int_dot(const Unpacked& u, const int8_t* a, int32_t start) {
  const int32_t* q = reinterpret_cast<const int32_t*>(a);
  const __m256i from = _mm256_set1_epi32(start);
  return {_mm256_cvtepi32_ps(_mm256_add_epi32(dot_half<Bits, From, To>(u, q, 0), from)),
          _mm256_cvtepi32_ps(_mm256_add_epi32(dot_half<Bits, From, To>(u, q, 1), from))};
}

}  // namespace kvasir::isa_avx2

#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/linear_float.inl"
//
#include "generic/bf16_pair.inl"
//
#include "generic/int_dots.inl"
#include "generic/span_dots.inl"
//
#include "generic/linear_bf16.inl"
//
#ifndef KVASIR_AS_BASE
#include "generic/linear_layouts.inl"
#endif
