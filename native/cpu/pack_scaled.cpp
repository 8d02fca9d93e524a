#include "cpu/pack_scaled.h"

#include <cstring>

namespace kvasir {

void pack_scaled(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile,
                 int column) {
  const LayoutSize size = kLayoutSizes[int(layout)];
  const bool is_byte = layout != Layout::nf4 && layout != Layout::fp4;
  for (int64_t b = 0; b < K / size.elements; b++, row += block_bytes) {
    uint8_t* block = tile + size.front + b * size.bytes;
    std::memcpy((size.front ? tile : block) + 4 * column, row, 4);
    uint8_t* p = block + (size.front ? 0 : 64);
    if (is_byte) {
      for (int k = 0; k < size.elements; k++) p[kTileCols * k + column] = row[4 + k];
    } else {
      for (int j = 0; j < size.elements / 8; j++) std::memcpy(p + 64 * j + 4 * column, row + 4 + 4 * j, 4);
    }
  }
}

}  // namespace kvasir
