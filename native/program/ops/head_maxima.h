// The largest logits of each run of columns, found by the items of the LM head while they are in a cache.
#pragma once
#include <vector>

#include "kernels.h"
#include "program/ops/tiles.h"
#include "sample/sampler.h"

namespace kvasir {

class HeadMaxima {
 public:
  HeadMaxima(const TileCut& cut, int64_t most_rows)
      : cut_(cut), max_runs_(ceil_div(cut.tiles, cut.per_item(1))), maxima_(size_t(most_rows * max_runs_)) {}

  // Of what a linear item has computed.
  void find(const LinearArgs& args, int64_t run) {
    const int64_t begin = args.tile0 * kTileCols, end = std::min<int64_t>(args.tile1 * kTileCols, args.N);
    for (int64_t m = args.m0; m < args.m1; m++)
      maxima_[size_t(m * max_runs_ + run)] = row_max(args.out + (m - args.m0) * args.ldo, end - begin);
  }

  Maxima of(const Extent& e, int64_t row) const {
    const int64_t per_item = cut_.per_item(ceil_div(e.logits, kLinearRows));
    return {{maxima_.data() + row * max_runs_, size_t(ceil_div(cut_.tiles, per_item))}, per_item * kTileCols};
  }

 private:
  TileCut cut_;
  int64_t max_runs_;
  std::vector<RowMax> maxima_;  // [rows, max_runs]
};

}  // namespace kvasir
