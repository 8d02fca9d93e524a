// Linears with the 512-bit vpmaddubsw (unsigned weights x signed activations, pairs summed in int16), for
// CPUs without VNNI.
#include "isa/avx512/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512/codes.h"

namespace kvasir::isa_avx512 {

constexpr int kIntRows = 4, kFloatRows = 8;
constexpr bool kPanels = true;

}  // namespace kvasir::isa_avx512

#include "isa/avx512/unpack.inl"
//
#include "isa/avx512/words.inl"

namespace kvasir::isa_avx512 {

// Codes below 64 as they are; eight-bit weights as |w| x sign(a, w), as on AVX2.
template <int Bits>
KVASIR_INLINE __m512i products(__m512i w, __m512i q) {
  if constexpr (Bits < 8) return _mm512_maddubs_epi16(w, q);
  const __m512i flipped = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(w), _mm512_setzero_si512(), q);
  return _mm512_maddubs_epi16(_mm512_abs_epi8(w), flipped);
}

// Registers whose products are summed in int16. Pairs reach 15 x 127 x 2 = 3,810 with four bits, 16,002 with
// six, 32,512 with eight: room for eight, two, one.
template <int Bits>
constexpr int kSums = Bits == 4   ? 8
                      : Bits == 6 ? 2
                                  : 1;

template <int Bits, int From, int To>
KVASIR_INLINE vf int_dot(const Unpacked& u, const int8_t* a, int32_t start) {
  static_assert((To - From) % kSums<Bits> == 0);
  const int32_t* q = reinterpret_cast<const int32_t*>(a);
  __m512i sum = _mm512_set1_epi32(start);
  for (int j = From; j < To; j += kSums<Bits>) {
    __m512i part = products<Bits>(u.w[j], _mm512_set1_epi32(q[j]));
    for (int i = j + 1; i < j + kSums<Bits>; i++)
      part = _mm512_add_epi16(part, products<Bits>(u.w[i], _mm512_set1_epi32(q[i])));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(part, _mm512_set1_epi16(1)));
  }
  return to_float(sum);
}

}  // namespace kvasir::isa_avx512

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
