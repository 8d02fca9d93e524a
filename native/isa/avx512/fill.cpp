#include "isa/avx512/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx512(Kernels& k) {
  k.level = "avx512";
  isa_avx512::fill_generic(k);
}

}  // namespace kvasir
