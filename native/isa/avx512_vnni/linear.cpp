// Linears with vpdpbusd (unsigned weights x signed activations): 16 columns a register.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/level.inl"

namespace kvasir::isa_avx512_vnni {

constexpr int kIntRows = 4, kFloatRows = 4;
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

// Embedded broadcasts load at one a cycle, half the rate of vpdpbusd on Zen 5: each serves NT tiles.
template <int MR, int NT>
KVASIR_INLINE void int_dots(const Unpacked* u, const int8_t* const* a, int64_t offset, vf* dots) {
  __m512i d[MR * NT];
  for (int n = 0; n < MR * NT; n++) d[n] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++)
    for (int i = 0; i < MR; i++) {
      const __m512i q = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(a[i] + offset + 4 * j));
      for (int t = 0; t < NT; t++) d[t * MR + i] = _mm512_dpbusd_epi32(d[t * MR + i], u[t].w[j], q);
    }
  for (int n = 0; n < MR * NT; n++) dots[n] = to_float(d[n]);
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
