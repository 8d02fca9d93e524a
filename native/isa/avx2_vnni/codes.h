// How unpacked codes are kept (generic/linear_formats.inl).
#pragma once
#include "isa/avx2_vnni/vec.h"

namespace kvasir::isa_avx2_vnni {

constexpr int kQ8Zero = 128;
constexpr bool kCentred = false;

}  // namespace kvasir::isa_avx2_vnni
