// Linears that hold weights in registers, one per integer layout that is not compact.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512_vnni/codes.h"

namespace kvasir::isa_avx512_vnni {

constexpr int kIntRows = 4;
constexpr bool kPanels = true;

}  // namespace kvasir::isa_avx512_vnni

#include "isa/avx512/unpack.inl"
//
#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "isa/avx512_vnni/held.h"
#include "isa/avx512_vnni/held.inl"

namespace kvasir::isa_avx512_vnni {

template <class... F>
void set_held(Kernels& k) {
  ((k.linear[int(Form::held)][int(F::kLayout)] = linear_held<F>), ...);
}

void fill_held_linears(Kernels& k) {
  set_held<FormatQ8, FormatQ4z, FormatQ4m, FormatQ4k, FormatQ5k, FormatQ6k, FormatQ5z, FormatQ5m, FormatIq4,
           FormatQ8x<false>, FormatQ8x<true>>(k);
}

}  // namespace kvasir::isa_avx512_vnni
