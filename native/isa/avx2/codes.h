// How unpacked codes are kept (generic/linear_formats.inl).
#pragma once
#include "isa/avx2/vec.h"

namespace kvasir::isa_avx2 {

constexpr int kQ8Zero = 0;
constexpr bool kCentred = true;
constexpr bool kDotsAskBits = true;

}  // namespace kvasir::isa_avx2
