// How unpacked codes are kept (generic/linear_formats.inl).
#pragma once
#include "isa/scalar/vec.h"

namespace kvasir::isa_scalar {

constexpr int kQ8Zero = 0;
constexpr bool kCentred = true;
constexpr bool kDotsAskBits = false;

}  // namespace kvasir::isa_scalar
