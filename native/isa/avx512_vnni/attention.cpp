// Attention with vdpbf16ps: pairs of bf16 products.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/kv.inl"

namespace kvasir::isa_avx512_vnni {

// As in generic/pair_floats.inl: a packed tile holds pairs, the even place low.
using Rounded = uint16_t;
struct Packed {
  uint16_t value;
};
constexpr int kPackedColumns = 32;
using Pair = __m512i;

KVASIR_INLINE void store_rounded(Rounded* p, vf x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
}

KVASIR_INLINE __m512i widen16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVASIR_INLINE Pair load_pair(const uint16_t* low, const uint16_t* high) {
  return ori(widen16(low), shl<16>(widen16(high)));
}
// Codes of 8 bits are exact in bf16.
template <class T>
KVASIR_INLINE Pair load_pair(const T* low, const T* high) {
  return ori(shr<16>(bits(load_kv(low))), andi(bits(load_kv(high)), set1i(int32_t(0xffff0000))));
}
template <class T>
KVASIR_INLINE Pair load_neighbours(const T* low) {
  return load_pair(low, low + 16);
}
KVASIR_INLINE Pair load_neighbours(const uint16_t* low) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, _mm512_loadu_si512(low));
}
KVASIR_INLINE Pair load_pair(const Packed* low, const Packed*) { return _mm512_loadu_si512(low); }
KVASIR_INLINE void store_packed(Packed* low, Packed*, Pair pair) { _mm512_storeu_si512(low, pair); }
KVASIR_INLINE Pair only_low(Pair pair) { return andi(pair, set1i(0xffff)); }
KVASIR_INLINE Pair only_high(Pair pair) { return andi(pair, set1i(int32_t(0xffff0000))); }

KVASIR_INLINE vf pair_dot(vf acc, const Rounded* a, Pair pair) {
  const __m512i both = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(a));
  return _mm512_dpbf16_ps(acc, (__m512bh)both, (__m512bh)pair);
}

}  // namespace kvasir::isa_avx512_vnni

#include "generic/attention.inl"
