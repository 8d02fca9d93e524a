// Bytes of a group and of codebooks on 512-bit registers (compact.inl). Words are looked up by permutations
// of their 16-bit codes, 32 at a time: a gather takes about as long for 16. Include after unpack.inl.
#pragma once
#include "grids.h"
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vi each(int byte) { return _mm512_set1_epi8(char(byte)); }
KVASIR_INLINE void put(Unpacked& u, int j, vi x) { u.w[j] = x; }
KVASIR_INLINE vi get(const Unpacked& u, int j) { return u.w[j]; }
KVASIR_INLINE vi add8(vi a, vi b) { return _mm512_add_epi8(a, b); }
KVASIR_INLINE vi shuffle16(const int8_t* table, vi x) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), x);
}
KVASIR_INLINE vi load_u16(const uint8_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE vi negate(vi x, const uint8_t* bits) {
  uint64_t minus;
  __builtin_memcpy(&minus, bits, 8);
  return _mm512_mask_sub_epi8(x, minus, _mm512_setzero_si512(), x);
}

// The entries of 32 indices below N.
template <int N>
KVASIR_INLINE __m512i look_up(const uint16_t* codes, __m512i index) {
  if constexpr (N == 64) {
    return _mm512_permutex2var_epi16(_mm512_loadu_si512(codes), index, _mm512_loadu_si512(codes + 32));
  } else {
    const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(int16_t(N / 2)));
    const __m512i low = look_up<N / 2>(codes, index), high = look_up<N / 2>(codes + N / 2, index);
    return _mm512_mask_blend_epi16(upper, low, high);
  }
}

// Codes of two words of 16 columns; `high`: planes of the bits above their bytes, `plane` bytes each.
template <int N>
KVASIR_INLINE __m512i code_pair(const uint8_t* codes, const uint8_t* high, int plane) {
  __m512i index = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  for (int i = 0; 256 << i < N; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, high + i * plane, 4);
    index = _mm512_mask_add_epi16(index, bits, index, _mm512_set1_epi16(int16_t(256 << i)));
  }
  return index;
}

// Values of the codes of each 32 bits, of which `from` says the bytes that its four come from.
KVASIR_INLINE __m512i four_values(__m512i codes, uint32_t from, uint32_t mask, __m512i values) {
  const __m512i lanes = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
  const __m512i spread = _mm512_shuffle_epi8(codes, _mm512_add_epi8(lanes, _mm512_set1_epi32(int32_t(from))));
  const __m512i shifted = _mm512_srlv_epi16(spread, _mm512_set1_epi32(0x00040000));
  return _mm512_shuffle_epi8(values, _mm512_and_si512(shifted, _mm512_set1_epi32(int32_t(mask))));
}
KVASIR_INLINE __m512i values_of(const int8_t* values) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm512_broadcast_i32x4(_mm_add_epi8(x, _mm_set1_epi8(char(kQ8Zero))));
}

// Word `index` of 16 columns: eight k.
template <int N>
KVASIR_INLINE void word8(const Grid8<N>& grid, vi index, vi* out) {
  // of each 32 bits the lower 16 are the code: past the last lie the values
  const __m512i found = _mm512_i32gather_epi32(index, grid.codes, 2);
  const __m512i values = values_of(grid.values);
  out[0] = four_values(found, 0, 0x0c030c03, values);
  out[1] = four_values(found, 0x01010101, 0x0c030c03, values);
}
// `value` in the lanes c whose bit 2c + odd is set.
KVASIR_INLINE vi where_bits(uint32_t bits, int odd, int32_t value) {
  const __m512i lane =
      _mm512_setr_epi32(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                        1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30);
  return _mm512_maskz_set1_epi32(_mm512_test_epi32_mask(set1i(int32_t(bits >> odd)), lane), value);
}

template <int N>
  requires(N <= 1024)
KVASIR_INLINE void words8(const Grid8<N>& grid, const uint8_t* codes, const uint8_t* high, Unpacked& u) {
  const __m512i values = values_of(grid.values);
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; pair++) {
    const __m512i found = look_up<N>(grid.codes, code_pair<N>(codes + 32 * pair, high + 4 * pair, 8));
#pragma GCC unroll 4
    for (uint32_t i = 0; i < 4; i++)
      u.w[4 * pair + int(i)] = four_values(found, i * 0x01010101, 0x0c030c03, values);
  }
}

template <int N>
KVASIR_INLINE void words4(const Grid4<N>& grid, const uint8_t* codes, const uint8_t* high, Unpacked& u) {
  const __m512i values = values_of(grid.values);
#pragma GCC unroll 4
  for (int pair = 0; pair < 4; pair++) {
    const __m512i found = look_up<N>(grid.codes, code_pair<N>(codes + 32 * pair, high + 4 * pair, 16));
#pragma GCC unroll 2
    for (uint32_t i = 0; i < 2; i++)
      u.w[2 * pair + int(i)] = four_values(found, 0x01000100 + i * 0x02020202, 0x0f0f0f0f, values);
  }
}

}  // namespace kvasir::KVASIR_ISA
