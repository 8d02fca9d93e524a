// How unpacked codes are kept (generic/linear_formats.inl).
#pragma once
#include "isa/avx512/vec.h"

namespace kvasir::isa_avx512 {

constexpr int kQ8Zero = 0;
constexpr bool kCentred = false;
constexpr bool kDotsAskBits = true;

}  // namespace kvasir::isa_avx512
