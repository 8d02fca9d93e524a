#include "isa/scalar/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_scalar(Kernels& k) {
  k.level = "scalar";
  isa_scalar::fill_generic(k);
}

}  // namespace kvasir
