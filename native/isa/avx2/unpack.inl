// A group of 32 k of one tile, unpacked to bytes on 256-bit registers. Include after kQ8Zero and kCentred
// (linear_formats.inl).
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

// [four k][columns 0-7, columns 8-15]
struct Unpacked {
  __m256i w[8][2];
};

KVASIR_INLINE void unpack4(const uint8_t* p, Unpacked& u) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int j = 0; j < 4; j++)
    for (int h = 0; h < 2; h++) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * j + 32 * h));
      u.w[2 * j][h] = _mm256_and_si256(x, low);
      u.w[2 * j + 1][h] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    }
}

KVASIR_INLINE void unpack8(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 8; j++)
    for (int h = 0; h < 2; h++) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 64 * j + 32 * h));
      u.w[j][h] = _mm256_xor_si256(x, _mm256_set1_epi8(kQ8Zero ? 0 : -128));
    }
}

// High: bit r of each byte is of the k in w[r].
template <int Zero>
KVASIR_INLINE void unpack5(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  const __m256i bit = _mm256_set1_epi8(16), zero = _mm256_set1_epi8(kCentred ? Zero : 0);
  for (int half = 0; half < 2; half++) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high + 32 * half));
    for (int r = 0; r < 8; r++) {
      const __m256i at4 = r < 4 ? _mm256_slli_epi16(h, 4 - r) : _mm256_srli_epi16(h, r - 4);
      u.w[r][half] = _mm256_sub_epi8(_mm256_or_si256(u.w[r][half], _mm256_and_si256(at4, bit)), zero);
    }
  }
}

template <int Zero>
KVASIR_INLINE void unpack6(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  const __m256i two = _mm256_set1_epi8(0x30), zero = _mm256_set1_epi8(kCentred ? Zero : 0);
  for (int r = 0; r < 8; r++)
    for (int half = 0; half < 2; half++) {
      const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high + 64 * (r / 4) + 32 * half));
      const int i = r % 4;
      const __m256i at4 = i < 2 ? _mm256_slli_epi16(h, 4 - 2 * i) : _mm256_srli_epi16(h, 2 * i - 4);
      u.w[r][half] = _mm256_sub_epi8(_mm256_or_si256(u.w[r][half], _mm256_and_si256(at4, two)), zero);
    }
}

KVASIR_INLINE void unpack_table(const uint8_t* p, Unpacked& u) {
  unpack4(p, u);
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
  const __m256i table = _mm256_broadcastsi128_si256(_mm_xor_si128(values, _mm_set1_epi8(kQ8Zero ? -128 : 0)));
  for (int r = 0; r < 8; r++)
    for (int half = 0; half < 2; half++) u.w[r][half] = _mm256_shuffle_epi8(table, u.w[r][half]);
}

}  // namespace kvasir::KVASIR_ISA
