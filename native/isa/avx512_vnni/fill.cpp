// Two levels of one folder, for many CPUs have VNNI without BF16: integer linears, and above them what takes
// bf16 instructions. Compilers use those only where they are written. The rest is AVX-512's.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/fill.inl"
#include "isa/avx512_vnni/held.h"

namespace kvasir {

void fill_avx512_vnni(Kernels& k) {
  k.level = "avx512_vnni";
  isa_avx512_vnni::fill_integer_linears(k);
  isa_avx512_vnni::fill_held_linears(k);
}

#ifdef KVASIR_WITHOUT_BF16  // of CPUs that lack it (CMakeLists.txt)
void fill_avx512_bf16(Kernels&) {}
#else
void fill_avx512_bf16(Kernels& k) {
  k.level = "avx512_bf16";
  k.linear[int(Form::usual)][int(Layout::bf16)] = isa_avx512_vnni::linear_bf16;
  isa_avx512_vnni::fill_scaled_linears(k);
  k.attention = isa_avx512_vnni::attention;
  k.attention_combine = isa_avx512_vnni::attention_combine;
}
#endif

}  // namespace kvasir
