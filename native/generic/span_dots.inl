// The plain form of span_dots (linear_grouped.inl), over a level's int_dots.
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

constexpr int kSpanRows = kIntRows;  // of a block of rows

template <int MR, int NT, int Bits, class Read>
KVASIR_INLINE void span_dots(const Read& read, const int8_t* const* a, int64_t offset, const int32_t* start,
                             vf* dots) {
  vf more[MR * NT];
  int_dots<MR, NT, Bits, 0, 8>(read(0), a, offset, start, dots);
  int_dots<MR, NT, Bits, 0, 8>(read(1), a, offset + kGroup, nullptr, more);
  for (int n = 0; n < MR * NT; n++) dots[n] = add(dots[n], more[n]);
}

}  // namespace kvasir::KVASIR_ISA
