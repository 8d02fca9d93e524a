// Linears in plain C++: the readable twin of the other levels, equal to them bit for bit.
#include "isa/scalar/vec.h"
//
#include "generic/level.inl"
#include "isa/scalar/codes.h"

namespace kvasir::isa_scalar {

constexpr int kIntRows = 2, kFloatRows = 2;
constexpr bool kPanels = false;

}  // namespace kvasir::isa_scalar

#include "isa/scalar/unpack.inl"
//
#include "isa/scalar/words.inl"

namespace kvasir::isa_scalar {

template <int Bits, int From, int To>
KVASIR_CALL vf int_dot(const Unpacked& u, const int8_t* a, int32_t start) {
  int32_t sum[16];
  for (int c = 0; c < 16; c++) sum[c] = start;
  for (int j = From; j < To; j++)
    for (int c = 0; c < 16; c++)
      for (int b = 0; b < 4; b++) sum[c] += int32_t(u.w[j][4 * c + b]) * a[4 * j + b];
  return to_float(loadi(sum));
}

}  // namespace kvasir::isa_scalar

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
#include "generic/linear_layouts.inl"
