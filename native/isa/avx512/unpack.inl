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

}  // namespace kvasir::KVASIR_ISA
