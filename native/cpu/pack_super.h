// One row of a format with a layout of its own among q4k ... iq4 (layouts.h) into column `column` of its
// tile.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace kvasir {

// row: K / elements blocks of block_bytes, as the file has them. tile: zero-filled.
void pack_super(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile, int column);

}  // namespace kvasir
