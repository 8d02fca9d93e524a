// How unpacked codes are kept (generic/linear_formats.inl).
#pragma once
#include "isa/avx512_vnni/vec.h"

namespace kvasir::isa_avx512_vnni {

constexpr int kQ8Zero = 128;
constexpr bool kCentred = false;
constexpr bool kDotsAskBits = false;

}  // namespace kvasir::isa_avx512_vnni
