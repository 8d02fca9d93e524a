// Linears with vpdpbusd (unsigned weights x signed activations): 16 columns a register.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/level.inl"

namespace kvasir::isa_avx512_vnni {

constexpr int kIntRows = 8, kFloatRows = 8;
constexpr int kQ8Zero = 128;

// A group of 32 k of one tile: eight registers of four k each, in k order.
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
  for (int j = 0; j < 8; j++) u.w[j] = _mm512_loadu_si512(p + 64 * j);
}

KVASIR_INLINE vf int_dot(const Unpacked& u, const int8_t* a) {
  const int32_t* q = reinterpret_cast<const int32_t*>(a);
  __m512i d0 = _mm512_setzero_si512(), d1 = d0;
  for (int j = 0; j < 8; j += 2) {
    d0 = _mm512_dpbusd_epi32(d0, u.w[j], _mm512_set1_epi32(q[j]));
    d1 = _mm512_dpbusd_epi32(d1, u.w[j + 1], _mm512_set1_epi32(q[j + 1]));
  }
  return to_float(addi(d0, d1));
}

KVASIR_INLINE vf bf16_pair(vf acc, vi weights, int32_t x) {
  return _mm512_dpbf16_ps(acc, (__m512bh)weights, (__m512bh)set1i(x));
}

}  // namespace kvasir::isa_avx512_vnni

#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/linear_float.inl"
//
#include "generic/linear_bf16.inl"
#include "generic/linear_int.inl"
