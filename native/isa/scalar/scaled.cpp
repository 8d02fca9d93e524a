// Linears of the scaled layouts.
#include "isa/scalar/vec.h"
//
#include "generic/level.inl"
#include "isa/scalar/codes.h"
//
#include "isa/scalar/unpack.inl"
//
#include "isa/scalar/words.inl"
//
#include "generic/bf16_pair.inl"
//
#include "generic/math.inl"

namespace kvasir::isa_scalar {

constexpr int kFloatRows = 2;

}  // namespace kvasir::isa_scalar

#include "generic/linear_scaled.inl"
