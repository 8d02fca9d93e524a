// Blocks of an f32 scale and codes that become bf16, to the scaled layouts (layouts.h).
#pragma once
#include <cstdint>

#include "kernels.h"

namespace kvasir {

// One row of K elements to `column` of a tile of zeros. A block of the row: its scale, then codes of 8 bits,
// or of 4 bits with the even elements low.
void pack_scaled(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile,
                 int column);

}  // namespace kvasir
