// How unpacked codes are kept (generic/linear_formats.inl). Include after vec.h.
#pragma once

namespace kvasir::KVASIR_ISA {

constexpr int kQ8Zero = 128;
constexpr bool kCentred = false;
constexpr bool kDotsAskBits = false;

}  // namespace kvasir::KVASIR_ISA
