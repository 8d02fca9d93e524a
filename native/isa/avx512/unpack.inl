// A group of 32 k of one tile, unpacked to bytes on 512-bit registers. Include after kQ8Zero; codes of five
// and six bits stay unsigned (kCentred is false).
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

static_assert(!kCentred);

// Eight registers of four k each, in k order.
struct Unpacked {
  __m512i w[8];
};

KVASIR_INLINE void unpack4(const uint8_t* p, Unpacked& u) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int j = 0; j < 4; j++) {
    const __m512i x = _mm512_loadu_si512(p + 64 * j);
    u.w[2 * j] = _mm512_and_si512(x, low);
    u.w[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
  }
}

KVASIR_INLINE void unpack8(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 8; j++)
    u.w[j] = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * j), _mm512_set1_epi8(kQ8Zero ? 0 : -128));
}

// High: bit r of each byte is of the k in w[r].
template <int Zero>
KVASIR_INLINE void unpack5(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  const __m512i h = _mm512_loadu_si512(high), bit = _mm512_set1_epi8(16);
  for (int r = 0; r < 8; r++) {
    const __m512i at4 = r < 4 ? _mm512_slli_epi16(h, unsigned(4 - r)) : _mm512_srli_epi16(h, unsigned(r - 4));
    u.w[r] = _mm512_or_si512(u.w[r], _mm512_and_si512(at4, bit));
  }
}

template <int Zero>
KVASIR_INLINE void unpack6(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  const __m512i two = _mm512_set1_epi8(0x30);
  for (int r = 0; r < 8; r++) {
    const __m512i h = _mm512_loadu_si512(high + 64 * (r / 4));
    const int i = r % 4;
    const __m512i at4 =
        i < 2 ? _mm512_slli_epi16(h, unsigned(4 - 2 * i)) : _mm512_srli_epi16(h, unsigned(2 * i - 4));
    u.w[r] = _mm512_or_si512(u.w[r], _mm512_and_si512(at4, two));
  }
}

KVASIR_INLINE void unpack_table(const uint8_t* p, Unpacked& u) {
  unpack4(p, u);
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values));
  const __m512i table =
      _mm512_xor_si512(_mm512_broadcast_i32x4(values), _mm512_set1_epi8(kQ8Zero ? -128 : 0));
  for (int r = 0; r < 8; r++) u.w[r] = _mm512_shuffle_epi8(table, u.w[r]);
}

KVASIR_INLINE __m512i sums8(const int8_t* a, int64_t n) {  // of each 8 of n bytes, all + 128
  const __m512i x = _mm512_maskz_loadu_epi8(n >= 64 ? ~0ull : n > 0 ? (1ull << n) - 1 : 0, a);
  return _mm512_sad_epu8(_mm512_xor_si512(x, _mm512_set1_epi8(-128)), _mm512_setzero_si512());
}

KVASIR_INLINE void sums16(const int8_t* a, int64_t n, int32_t* sums) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  for (int64_t i = 0; i < n; i += 8) {
    const __m512i x = sums8(a + 16 * i, 16 * (n - i)), y = sums8(a + 16 * i + 64, 16 * (n - i) - 64);
    const __m512i s = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    const __m256i runs = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, s));
    const __mmask8 real = n - i >= 8 ? 0xff : __mmask8((1 << (n - i)) - 1);
    _mm256_mask_storeu_epi32(sums + i, real, _mm256_sub_epi32(runs, _mm256_set1_epi32(16 * 128)));
  }
}

}  // namespace kvasir::KVASIR_ISA
