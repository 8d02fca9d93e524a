// Ops of positions that have more than one axis.
#pragma once
#include <vector>

#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

// in: none, the step's rope_positions; out: f32 [tokens, rotary_dim], cos | sin of each pair at the position
// on its axis; table, rotary_dim; time_pairs, height_pairs, width_pairs, woven: which pairs are of which
// axis.
struct Angles {
  static constexpr const char* kName = "angles";
  Angles(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(e.tokens, kTokens); }
  void run(const Extent& e, int64_t item, int thread) const;

  static constexpr int64_t kTokens = 32;  // of an item
  const float* table;
  const int32_t* at;
  float* out;
  std::vector<int32_t> axes;  // of each pair
};

// in: i32 and f32 [rows, 4]; out: f32; weight: a table. The sum of four of its rows, of each a share:
// products are rounded and added in order.
struct Between {
  static constexpr const char* kName = "between";
  Between(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRows); }
  void run(const Extent& e, int64_t item, int thread) const;

  static constexpr int64_t kRows = 8;  // of an item
  RowCount rows;
  const int32_t* corners;
  const float *shares, *table;
  float* out;
  int64_t columns;
};

}  // namespace kvasir
