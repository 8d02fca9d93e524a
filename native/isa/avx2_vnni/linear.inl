// Integer linears with the 256-bit vpdpbusd (unsigned weights x signed activations). Include after vec.h.
#include "generic/level.inl"
#include "isa/avx2_vnni/codes.h"

namespace kvasir::KVASIR_ISA {

constexpr int kIntRows = 4;
constexpr bool kPanels = true;

}  // namespace kvasir::KVASIR_ISA

#include "isa/avx2/unpack.inl"
//
#include "isa/avx2/words.inl"

namespace kvasir::KVASIR_ISA {

// Four rows by two halves of a tile: eight sums in flight.
template <int MR, int From, int To>
KVASIR_INLINE void tile_dots(const Unpacked& u, const int8_t* const* a, int64_t offset, const int32_t* start,
                             vf* dots) {
  __m256i d[MR][2];
  for (int i = 0; i < MR; i++) d[i][0] = d[i][1] = _mm256_set1_epi32(start ? start[i] : 0);
#pragma GCC unroll 8
  for (int j = From; j < To; j++)
    for (int i = 0; i < MR; i++) {
      const __m256i q = _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(a[i] + offset + 4 * j));
      for (int h = 0; h < 2; h++) d[i][h] = dot_bytes(d[i][h], u.w[j][h], q);
    }
  for (int i = 0; i < MR; i++) dots[i] = {_mm256_cvtepi32_ps(d[i][0]), _mm256_cvtepi32_ps(d[i][1])};
}

template <int MR, int NT, int Bits, int From, int To>
KVASIR_INLINE void int_dots(const Unpacked* u, const int8_t* const* a, int64_t offset, const int32_t* start,
                            vf* dots) {
  constexpr int kStep = MR < kIntRows ? MR : kIntRows;
  static_assert(MR % kStep == 0);
  for (int t = 0; t < NT; t++)
    for (int i = 0; i < MR; i += kStep)
      tile_dots<kStep, From, To>(u[t], a + i, offset, start ? start + i : nullptr, dots + t * MR + i);
}

}  // namespace kvasir::KVASIR_ISA

#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/span_dots.inl"
//
#include "generic/linear_layouts.inl"
