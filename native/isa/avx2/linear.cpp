// Linears with vpmaddubsw. Four-bit weights: eight products of at most 15 x 127 x 2 fit in int16 (30,480), so
// pairs are summed there first. Eight-bit weights: |w| x sign(a, w) never saturates (128 x 127 x 2 = 32,512).
#include "isa/avx2/vec.h"
//
#include "generic/level.inl"

namespace kvasir::isa_avx2 {

constexpr int kIntRows = 4, kFloatRows = 4;
constexpr int kQ8Zero = 0;

// [four k][columns 0-7, columns 8-15]
struct Unpacked {
  __m256i w[8][2];
  bool wide;
};

KVASIR_INLINE void unpack4(const uint8_t* p, Unpacked& u) {
  const __m256i low = _mm256_set1_epi8(15);
  u.wide = false;
  for (int j = 0; j < 4; j++)
    for (int h = 0; h < 2; h++) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * j + 32 * h));
      u.w[2 * j][h] = _mm256_and_si256(x, low);
      u.w[2 * j + 1][h] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    }
}

KVASIR_INLINE void unpack8(const uint8_t* p, Unpacked& u) {
  u.wide = true;
  for (int j = 0; j < 8; j++)
    for (int h = 0; h < 2; h++) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * j + 32 * h));
      u.w[j][h] = _mm256_xor_si256(x, _mm256_set1_epi8(-128));
    }
}

KVASIR_INLINE __m256i dot4(const Unpacked& u, const int32_t* q, int h) {
  __m256i sum = _mm256_setzero_si256();
  for (int j = 0; j < 8; j++)
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(u.w[j][h], _mm256_set1_epi32(q[j])));
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

KVASIR_INLINE __m256i dot8(const Unpacked& u, const int32_t* q, int h) {
  __m256i sum = _mm256_setzero_si256();
  for (int j = 0; j < 8; j++) {
    const __m256i w = u.w[j][h];
    const __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(_mm256_set1_epi32(q[j]), w));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(p, _mm256_set1_epi16(1)));
  }
  return sum;
}

KVASIR_INLINE vf int_dot(const Unpacked& u, const int8_t* a) {
  const int32_t* q = reinterpret_cast<const int32_t*>(a);
  if (u.wide) return {_mm256_cvtepi32_ps(dot8(u, q, 0)), _mm256_cvtepi32_ps(dot8(u, q, 1))};
  return {_mm256_cvtepi32_ps(dot4(u, q, 0)), _mm256_cvtepi32_ps(dot4(u, q, 1))};
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
#include "generic/linear_bf16.inl"
//
#include "generic/linear_int.inl"
