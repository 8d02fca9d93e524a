// Blocks of the 1- to 4-bit formats with small scales, to the compact layouts (layouts.h).
#pragma once
#include <cstdint>

#include "kernels.h"

namespace kvasir {

// One row of K elements to `column` of a tile of zeros.
void pack_compact(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile,
                  int column);

}  // namespace kvasir
