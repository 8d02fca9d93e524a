// Products of rows, and what is done to the heads of rows apart from writing keys and values.
#pragma once
#include <vector>

#include "program/ops/rows.h"

namespace kvasir {

// in: f32, rows of as many columns or more; out: f32; column: the first of those.
struct MulColumns : RowOp<MulArgs> {
  static constexpr const char* kName = "mul_columns";
  MulColumns(const Record& r, const Workspace& w);
};

// in: f32; out: f32, max(0, x) squared. Plain C++, which all levels share.
struct SquaredRelu {
  static constexpr const char* kName = "relu2";
  SquaredRelu(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  RowCount rows;
  int64_t columns;
  const float* from;
  float* to;
};

// in: f32; out: f32; weight: of each column the one that goes there. Plain C++, which all levels share.
struct GatherColumns {
  static constexpr const char* kName = "gather_columns";
  GatherColumns(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  RowCount rows;
  const float* from;
  float* to;
  std::vector<int32_t> order;
};

// in: f32; out: f32; weight: a factor of each column.
struct Weigh : RowOp<MulArgs> {
  static constexpr const char* kName = "weigh";
  Weigh(const Record& r, const Workspace& w);
};

// in: routing weights and ids [T, k]; out: f32 [T, k]; weight: a factor of each expert.
struct WeighExperts {
  static constexpr const char* kName = "weigh_experts";
  WeighExperts(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  RowCount rows;
  int32_t top_k;
  const float *shares, *factors;
  const int32_t* ids;
  float* out;
};

// in: f32; out: f32; weight: of a head, or none; n_heads, eps.
struct HeadNorm : RowOp<NormArgs> {
  static constexpr const char* kName = "head_norm";
  HeadNorm(const Record& r, const Workspace& w);
};

// in: queries, angles of each token or none; out: f32; weight: the norm of a head, or none; n_heads,
// rotary_dim, neox, table, qk_norm, eps.
struct RopeHeads : RowOp<RopeWriteArgs> {
  static constexpr const char* kName = "rope_heads";
  RopeHeads(const Record& r, const Workspace& w);
};

}  // namespace kvasir
