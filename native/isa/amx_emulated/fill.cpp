// The kernels of isa/amx over emulated tiles, for tests on CPUs without AMX.
#include "isa/amx_emulated/vec.h"
//
#include "generic/fill.inl"

namespace kvasir {

void fill_amx_emulated(Kernels& k) {
  k.level = "amx_emulated";
  isa_amx_emulated::fill_integer_linears(k);
}

}  // namespace kvasir
