// How the column tiles of a packed weight are cut into items.
#pragma once
#include <algorithm>

#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

constexpr int64_t kLinearRows = 128;  // rows of one linear item: 128 x 1536 int8 stay in a 1 MB L2
constexpr int64_t kItemTiles = 32;    // of one linear item, at most

struct TileCut {
  // out: where the outputs go.
  TileCut(int64_t tiles, const Rows& out, Epilogue epilogue, int64_t n_threads)
      : tiles(tiles),
        // kernels take tiles by twos, gate and up belong together, and what becomes int8 comes in whole
        // blocks
        unit(std::max<int64_t>(2, (epilogue == Epilogue::gated ? 2 : 1) * out.block / kTileCols)),
        n_threads(n_threads) {}

  int64_t per_item(int64_t row_chunks, int64_t items_per_thread = kItemsPerThread) const {
    const int64_t wanted = tiles * row_chunks / (items_per_thread * n_threads);
    return std::clamp<int64_t>(wanted / unit * unit, unit, std::max(unit, kItemTiles / unit * unit));
  }

  int64_t tiles, unit, n_threads;
};

}  // namespace kvasir
