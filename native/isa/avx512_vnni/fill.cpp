#include "isa/avx512_vnni/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx512_vnni(Kernels& k) {
  k.level = "avx512_vnni";
  isa_avx512_vnni::fill_generic(k);
}

}  // namespace kvasir
