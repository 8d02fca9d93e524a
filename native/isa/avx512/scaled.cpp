// Linears of the scaled layouts.
#include "isa/avx512/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512/codes.h"
//
#include "isa/avx512/unpack.inl"
//
#include "isa/avx512/words.inl"
//
#include "generic/bf16_pair.inl"
//
#include "generic/math.inl"

namespace kvasir::isa_avx512 {

constexpr int kFloatRows = 8;

}  // namespace kvasir::isa_avx512

#include "generic/linear_scaled.inl"
