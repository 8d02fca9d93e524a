// The tile instructions (Intel AMX). isa/amx_emulated/tiles.h has the same functions in plain C++.
// Written as asm: gcc's intrinsics take literal tile numbers only, and its tile loads do not say that they
// read memory.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace kvasir::KVASIR_ISA {

// What LDTILECFG reads: of each tile the bytes of a row and the number of rows.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// The tiles of this thread in given shapes. Released at the end: tiles in use make every switch of threads
// save 8 KB, and keep the core from sleeping deeply.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" : : "m"(shapes)); }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

template <int Tile>
KVASIR_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
// Rows lie `stride` bytes apart.
template <int Tile>
KVASIR_INLINE void tile_load(const void* rows, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
KVASIR_INLINE void tile_store(void* rows, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(Tile) : "memory");
}
// Sum[m][n] += A[m][4k + i] * B[k][4n + i] over k and i < 4: int8 by int8 into int32.
template <int Sum, int A, int B>
KVASIR_INLINE void tile_dot() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

}  // namespace kvasir::KVASIR_ISA
