#pragma once
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

// Adds rows to the sums of their requests, one after the other. in: f32 of the logit rows, which in a program
// that pools are the tokens that are pooled; out: none, the sums are the caller's.
struct PoolRows {
  static constexpr const char* kName = "pool";
  static constexpr int64_t kColumns = 64;  // of an item: a cache line of f32 in each of four rows
  PoolRows(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return e.logits ? ceil_div(columns, kColumns) : 0; }
  void run(const Extent& e, int64_t item, int thread) const;

  const float* rows;
  int64_t columns;
  const int32_t* slot;  // of each logit row of the step
  double* sums;         // [slots, columns]
};

}  // namespace kvasir
