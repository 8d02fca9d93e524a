#include "isa/avx2/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx2(Kernels& k) {
  k.level = "avx2";
  isa_avx2::fill_generic(k);
}

}  // namespace kvasir
