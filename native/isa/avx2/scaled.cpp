// Linears of the scaled layouts.
#include "isa/avx2/vec.h"
//
#include "generic/level.inl"
#include "isa/avx2/codes.h"
//
#include "isa/avx2/unpack.inl"
//
#include "isa/avx2/words.inl"
//
#include "generic/bf16_pair.inl"
//
#include "generic/math.inl"

namespace kvasir::isa_avx2 {

constexpr int kFloatRows = 4;

}  // namespace kvasir::isa_avx2

#include "generic/linear_scaled.inl"
