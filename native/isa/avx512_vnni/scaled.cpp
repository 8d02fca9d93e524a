// Linears of the scaled layouts.
#include "isa/avx512_vnni/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512_vnni/codes.h"
//
#include "isa/avx512/unpack.inl"
//
#include "isa/avx512/words.inl"
//
#include "isa/avx512_vnni/bf16_pair.inl"
//
#include "generic/math.inl"

namespace kvasir::isa_avx512_vnni {

constexpr int kFloatRows = 8;

}  // namespace kvasir::isa_avx512_vnni

#include "generic/linear_scaled.inl"
