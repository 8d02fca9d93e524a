// The kernels of isa/avx2_vnni over an emulated vpdpbusd, for tests on CPUs without AVX-VNNI.
#include "isa/avx2_vnni_emulated/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_avx2_vnni_emulated(Kernels& k) {
  k.level = "avx2_vnni_emulated";
  isa_avx2_vnni_emulated::fill_integer_linears(k);
}

}  // namespace kvasir
