// Subnormal numbers read and give zero while this lives: what vdpbf16ps does whatever the mode, for
// everything around it and for the levels that compute the same in two steps.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

}  // namespace kvasir::KVASIR_ISA
