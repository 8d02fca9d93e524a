// Ops that compute rows apart from each other. Each reads its operands from its record once; an item is a few
// neighbouring rows.
#pragma once
#include <algorithm>

#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

constexpr int64_t kRowsPerItem = 8;

// A kernel over the rows [m0, m1) of `args`.
template <class Args>
struct RowOp {
  void (*kernel)(const Args&);
  Args args;
  RowCount rows;

  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }
  void run(const Extent& e, int64_t item, int) const { kernel(of_item(e, item, kRowsPerItem)); }

 protected:
  Args of_item(const Extent& e, int64_t item, int64_t n) const {
    Args one = args;
    one.m0 = item * n;
    one.m1 = std::min(one.m0 + n, rows(e));
    return one;
  }
};

// in: none; out: f32; weight: the matrix of ids; scale.
struct Embed : RowOp<EmbedArgs> {
  static constexpr const char* kName = "embed";
  Embed(const Record& r, const Workspace& w);
};
// The same; the ids are the positions of the tokens.
struct EmbedPositions : Embed {
  static constexpr const char* kName = "embed_positions";
  EmbedPositions(const Record& r, const Workspace& w);
};

struct EmbedTypes : Embed {
  static constexpr const char* kName = "embed_types";
  EmbedTypes(const Record& r, const Workspace& w);
};
// in: i32 ids.
struct EmbedIds : Embed {
  static constexpr const char* kName = "embed_ids";
  EmbedIds(const Record& r, const Workspace& w);
};

// in: f32; out: rows of any type; weights: vector or none, bias or none (layer_norm); eps.
struct Norm : RowOp<NormArgs> {
  static constexpr const char* kName = "norm";
  Norm(const Record& r, const Workspace& w);

 protected:
  Norm(const Record& r, const Workspace& w, void (*kernel)(const NormArgs&));
};
struct LayerNorm : Norm {
  static constexpr const char* kName = "layer_norm";
  LayerNorm(const Record& r, const Workspace& w);
};

// in: f32; out: rows of any type.
struct Cast : RowOp<CastArgs> {
  static constexpr const char* kName = "cast";
  Cast(const Record& r, const Workspace& w);
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: rows of q, k and v; out: q; weights: norms of q and k or none; layer, n_heads, rotary_dim, neox, table,
// q_table, qk_norm, eps. A second in: angles of each token, in place of the tables.
struct RopeWrite : RowOp<RopeWriteArgs> {
  static constexpr const char* kName = "rope_write";
  RopeWrite(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), rows_per_item(e)); }
  void run(const Extent& e, int64_t item, int) const { kernel(of_item(e, item, rows_per_item(e))); }
  int64_t rows_per_item(const Extent& e) const;

  int64_t n_threads;
};

// in: two of f32; out: f32.
struct Add : RowOp<AddArgs> {
  static constexpr const char* kName = "add";
  Add(const Record& r, const Workspace& w);
};

// in: f32; out: f32; scale, softcap.
struct Scale : RowOp<ScaleArgs> {
  static constexpr const char* kName = "scale";
  Scale(const Record& r, const Workspace& w);
};

// in: f32, a column of gates; out: f32.
struct GateRows : RowOp<GateRowsArgs> {
  static constexpr const char* kName = "gate_rows";
  GateRows(const Record& r, const Workspace& w);
};

// in: f32, f32, i32; out: f32: rows of the second where the third is not 0.
struct MergeEmbeds {
  static constexpr const char* kName = "merge_embeds";
  MergeEmbeds(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(e.tokens, kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  const float *own, *given;
  const int32_t* is_given;
  float* out;
  int64_t columns;
};

// in: f32, f32, i32; out: f32: rows of the first, and where the third is not 0 their sum with the second.
struct AddEmbeds : MergeEmbeds {
  static constexpr const char* kName = "add_embeds";
  AddEmbeds(const Record& r, const Workspace& w);
  void run(const Extent& e, int64_t item, int thread) const;
};

// in: f32 of all tokens; out: f32 of the logit rows.
struct GatherRows {
  static constexpr const char* kName = "gather_rows";
  GatherRows(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(e.logits, kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  const float* from;
  float* to;
  int64_t columns;
  const int32_t* token;  // of each logit row of the step
};

// in: two or three of f32; out: f32: their rows side by side.
struct JoinColumns {
  static constexpr const char* kName = "join_columns";
  JoinColumns(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  RowCount rows;
  const float* from[3] = {};
  int64_t columns[3] = {};
  float* to;
  int64_t width;
};

}  // namespace kvasir
