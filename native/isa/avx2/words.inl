// Bytes of a group and of codebooks on 256-bit registers (compact.inl). Include after unpack.inl.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vi each(int byte) { return set1i(int32_t(uint32_t(uint8_t(byte)) * 0x01010101u)); }
KVASIR_INLINE void put(Unpacked& u, int j, vi x) {
  u.w[j][0] = x.lo;
  u.w[j][1] = x.hi;
}
KVASIR_INLINE vi get(const Unpacked& u, int j) { return {u.w[j][0], u.w[j][1]}; }
KVASIR_INLINE vi add8(vi a, vi b) { return {_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)}; }
KVASIR_INLINE vi shuffle16(const int8_t* table, vi x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(t, x.lo), _mm256_shuffle_epi8(t, x.hi)};
}
KVASIR_INLINE vi gather(const uint32_t* table, vi index) {
  const int* p = reinterpret_cast<const int*>(table);
  return {_mm256_i32gather_epi32(p, index.lo, 4), _mm256_i32gather_epi32(p, index.hi, 4)};
}
KVASIR_INLINE vi load_u16(const uint8_t* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}

// Bytes negated where their bit is set.
KVASIR_INLINE __m256i negate_half(__m256i x, const uint8_t* bits) {
  int32_t word;
  __builtin_memcpy(&word, bits, 4);
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), spread), bit);
  const __m256i minus = _mm256_cmpeq_epi8(set, bit);
  return _mm256_sub_epi8(_mm256_xor_si256(x, minus), minus);
}
KVASIR_INLINE vi negate(vi x, const uint8_t* bits) {
  return {negate_half(x.lo, bits), negate_half(x.hi, bits + 4)};
}

// `value` in the lanes c whose bit 2c + odd is set.
KVASIR_INLINE vi where_bits(uint32_t bits, int odd, int32_t value) {
  const __m256i word = _mm256_set1_epi32(int32_t(bits >> odd)), v = _mm256_set1_epi32(value);
  const __m256i low = _mm256_setr_epi32(1, 1 << 2, 1 << 4, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14);
  const __m256i high = _mm256_slli_epi32(low, 16);
  return {_mm256_and_si256(_mm256_cmpeq_epi32(_mm256_and_si256(word, low), low), v),
          _mm256_and_si256(_mm256_cmpeq_epi32(_mm256_and_si256(word, high), high), v)};
}

}  // namespace kvasir::KVASIR_ISA
