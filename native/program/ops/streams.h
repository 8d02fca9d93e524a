// Rows of several streams side by side, and the gate that a share of them has. All but the gate are plain
// C++, which all levels share.
#pragma once
#include "program/ops/rows.h"

namespace kvasir {

// in: gate and up, f32; out: f32; scale: deviations, act.
struct SparseGate : RowOp<SparseGateArgs> {
  static constexpr const char* kName = "sparse_gate";
  SparseGate(const Record& r, const Workspace& w);
};

// What the others have: rows of each operand, one item for a few of them.
struct StreamOp {
  StreamOp(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }

  RowCount rows;
  const float *x, *y, *shares;  // the operands in their order, null where absent
  float* out;
  int64_t n_x, n_y, n_shares, n_out, column;

 protected:
  template <class Row>
  void each(const Extent& e, int64_t item, const Row& row) const;
};

// in: f32; out: f32, fewer columns; column: the first.
struct TakeColumns : StreamOp {
  static constexpr const char* kName = "take_columns";
  using StreamOp::StreamOp;
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: n streams, shares [T, n * n]; out: streams; column: their width.
struct MixStreams : StreamOp {
  static constexpr const char* kName = "mix_streams";
  using StreamOp::StreamOp;
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: n streams, rows, shares [T, n]; out: streams; column: of the stream that the rows are of.
struct CorrectStreams : StreamOp {
  static constexpr const char* kName = "correct_streams";
  using StreamOp::StreamOp;
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: streams, rows; out: streams; column: of the first stream that the rows are added to.
struct AddToStreams : StreamOp {
  static constexpr const char* kName = "add_to_streams";
  using StreamOp::StreamOp;
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: rows, rows of the size that they are brought to; out: f32; eps.
struct MatchRows : StreamOp {
  static constexpr const char* kName = "match_rows";
  MatchRows(const Record& r, const Workspace& w);
  void run(const Extent& e, int64_t item, int thread) const;

  float eps;
};

}  // namespace kvasir
