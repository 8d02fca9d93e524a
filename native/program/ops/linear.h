// out = epilogue(x * W + bias): items are runs of column tiles by chunks of rows.
#pragma once
#include "program/ops/head_maxima.h"
#include "program/ops/tiles.h"
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

struct Bytes {
  const uint8_t *begin = nullptr, *end = nullptr;
};

// in: rows as the layout takes them, residual or none; out: f32, or rows of any type; weights: matrix, bias
// or none; column (of the output, where several make one), epilogue, act.
struct Linear {
  static constexpr const char* kName = "linear";
  Linear(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const;
  void run(const Extent& e, int64_t item, int thread) const;

  // Bound by memory: one row chunk, for which all weights are read.
  bool has_few_rows(const Extent& e) const { return rows(e) <= kLinearRows; }
  // Weights of items [begin, end), where rows are few.
  Bytes bytes_of(const Extent& e, int64_t begin, int64_t end) const;

  int64_t per_item(const Extent& e) const;  // tiles

  const Workspace& workspace;
  int32_t weight_id;
  const Weight& weight;
  Rows x, out;
  const float *residual, *bias;
  int64_t column;
  Epilogue epilogue;
  Act act;
  TileCut cut;
  RowCount rows;
  HeadMaxima* maxima = nullptr;  // where the outputs are the logits that are sampled
};

}  // namespace kvasir
