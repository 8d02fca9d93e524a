// The plain form of int_dots (linear_int.inl), over a level's int_dot.
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

// Row by row and tile by tile, where nothing is gained by sharing.
template <int MR, int NT, int Bits, int From, int To>
KVASIR_INLINE void int_dots(const Unpacked* u, const int8_t* const* a, int64_t offset, const int32_t* start,
                            vf* dots) {
  for (int t = 0; t < NT; t++)
    for (int i = 0; i < MR; i++)
      dots[t * MR + i] = int_dot<Bits, From, To>(u[t], a[i] + offset, start ? start[i] : 0);
}

}  // namespace kvasir::KVASIR_ISA
