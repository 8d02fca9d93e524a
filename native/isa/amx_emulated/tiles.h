// The functions of isa/amx/tiles.h on a tile file in memory. What faults on a CPU stops the process here.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace kvasir::KVASIR_ISA {

constexpr int kTileCount = 8, kMaxTileRows = 16, kMaxRowBytes = 64;

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

struct TileFile {
  bool in_use;
  int rows[kTileCount], row_bytes[kTileCount];
  int8_t data[kTileCount][kMaxTileRows][kMaxRowBytes];
};
static thread_local TileFile tile_file;

KVASIR_INLINE void require(bool holds) {
  if (!holds) __builtin_trap();
}

class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) {
    require(shapes.palette == 1 && shapes.start_row == 0 && !tile_file.in_use);
    for (int byte = 0; byte < 14; byte++) require(shapes.reserved[byte] == 0);
    tile_file = {};
    tile_file.in_use = true;
    for (int t = 0; t < 16; t++) {
      const int rows = shapes.rows[t], bytes = shapes.row_bytes[t];
      require(rows <= kMaxTileRows && bytes <= kMaxRowBytes && (rows == 0) == (bytes == 0));
      if (t >= kTileCount) {
        require(rows == 0);
        continue;
      }
      tile_file.rows[t] = rows;
      tile_file.row_bytes[t] = bytes;
    }
  }
  ~Tiles() { tile_file.in_use = false; }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int Tile>
KVASIR_INLINE void tile_zero() {
  static_assert(Tile >= 0 && Tile < kTileCount);
  require(tile_file.in_use && tile_file.rows[Tile] > 0);
  __builtin_memset(tile_file.data[Tile], 0, sizeof tile_file.data[Tile]);
}

template <int Tile>
KVASIR_INLINE void tile_load(const void* rows, int64_t stride) {
  tile_zero<Tile>();
  for (int m = 0; m < tile_file.rows[Tile]; m++)
    __builtin_memcpy(tile_file.data[Tile][m], static_cast<const int8_t*>(rows) + m * stride,
                     size_t(tile_file.row_bytes[Tile]));
}

template <int Tile>
KVASIR_INLINE void tile_store(void* rows, int64_t stride) {
  static_assert(Tile >= 0 && Tile < kTileCount);
  require(tile_file.in_use && tile_file.rows[Tile] > 0);
  for (int m = 0; m < tile_file.rows[Tile]; m++)
    __builtin_memcpy(static_cast<int8_t*>(rows) + m * stride, tile_file.data[Tile][m],
                     size_t(tile_file.row_bytes[Tile]));
}

template <int Sum, int A, int B>
static void tile_dot() {
  static_assert(Sum != A && Sum != B && A != B);
  TileFile& f = tile_file;
  const int rows = f.rows[Sum], columns = f.row_bytes[Sum] / 4, depth = f.rows[B];
  require(f.in_use && rows > 0 && columns > 0 && depth > 0 && f.row_bytes[Sum] % 4 == 0);
  require(f.rows[A] == rows && f.row_bytes[A] == 4 * depth && f.row_bytes[B] == 4 * columns);
  for (int m = 0; m < rows; m++)
    for (int k = 0; k < depth; k++)
      for (int n = 0; n < columns; n++) {
        int32_t sum;
        __builtin_memcpy(&sum, f.data[Sum][m] + 4 * n, 4);
        for (int i = 0; i < 4; i++) sum += int32_t(f.data[A][m][4 * k + i]) * f.data[B][k][4 * n + i];
        __builtin_memcpy(f.data[Sum][m] + 4 * n, &sum, 4);
      }
}

}  // namespace kvasir::KVASIR_ISA
