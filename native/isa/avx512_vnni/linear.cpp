// Linears with vpdpbusd (unsigned weights x signed activations): 16 columns a register.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512_vnni/codes.h"

namespace kvasir::isa_avx512_vnni {

constexpr int kIntRows = 4, kFloatRows = 8;
constexpr bool kPanels = true;

}  // namespace kvasir::isa_avx512_vnni

#include "isa/avx512/unpack.inl"
//
#include "isa/avx512/words.inl"

namespace kvasir::isa_avx512_vnni {

// Embedded broadcasts load at one a cycle, half the rate of vpdpbusd on Zen 5: each serves NT tiles.
template <int MR, int NT, int Bits, int From, int To>
KVASIR_INLINE void int_dots(const Unpacked* u, const int8_t* const* a, int64_t offset, const int32_t* start,
                            vf* dots) {
  __m512i d[MR * NT];
  for (int n = 0; n < MR * NT; n++) d[n] = start ? _mm512_set1_epi32(start[n % MR]) : _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = From; j < To; j++)
    for (int i = 0; i < MR; i++) {
      const __m512i q = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(a[i] + offset + 4 * j));
      for (int t = 0; t < NT; t++) d[t * MR + i] = _mm512_dpbusd_epi32(d[t * MR + i], u[t].w[j], q);
    }
  for (int n = 0; n < MR * NT; n++) dots[n] = to_float(d[n]);
}

// Sums of both groups stay in one register, so that eight rows of two tiles find room.
constexpr int kSpanRows = 8;
template <int MR, int NT, int Bits, class Read>
KVASIR_INLINE void span_dots(const Read& read, const int8_t* const* a, int64_t offset, const int32_t* start,
                             vf* dots) {
  __m512i d[MR * NT];
  for (int n = 0; n < MR * NT; n++) d[n] = start ? _mm512_set1_epi32(start[n % MR]) : _mm512_setzero_si512();
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const Unpacked* u = read(half);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
      for (int i = 0; i < MR; i++) {
        const int64_t at = offset + kGroup * half + 4 * j;
        const __m512i q = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(a[i] + at));
        for (int t = 0; t < NT; t++) d[t * MR + i] = _mm512_dpbusd_epi32(d[t * MR + i], u[t].w[j], q);
      }
  }
  for (int n = 0; n < MR * NT; n++) dots[n] = to_float(d[n]);
}

}  // namespace kvasir::isa_avx512_vnni

#include "isa/avx512_vnni/bf16_pair.inl"
//
#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/linear_bf16.inl"
#include "generic/linear_layouts.inl"
