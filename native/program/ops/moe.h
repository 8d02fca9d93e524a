// Mixtures of experts: route each token to its experts, sort the pairs (token, rank) by expert, compute each
// expert's rows together, add them up.
#pragma once
#include "program/ops/rows.h"
#include "program/ops/tiles.h"

namespace kvasir {

// in: router logits; out: ids, weights [T, k]; weight: bias or none; n_experts, top_k, score, n_groups,
// top_groups, group_score, normalize, scale.
struct Route : RowOp<RouteArgs> {
  static constexpr const char* kName = "route";
  Route(const Record& r, const Workspace& w);
};

// Counting sort of the pairs by expert, stable. in: ids; out: token of each sorted pair, sorted place of each
// pair, first sorted pair of each expert and their number; n_experts, top_k.
struct GroupPairs {
  static constexpr const char* kName = "group_pairs";
  GroupPairs(const Record& r, const Workspace& w);
  int64_t items(const Extent&) const { return 1; }
  void run(const Extent& e, int64_t item, int thread) const;

  const int32_t* ids;
  int32_t *token, *place, *offsets;
  int32_t n_experts, top_k;
};

// in: rows as the layout takes them, token and offsets of group_pairs; out: f32 of the pairs; weight: the
// experts' matrices, their biases or none; epilogue, act, per_pair (rows of pairs are read, not of tokens),
// n_experts.
struct ExpertLinear {
  static constexpr const char* kName = "expert_linear";
  ExpertLinear(const Record& r, const Workspace& w);
  int64_t items(const Extent&) const { return ceil_div(cut.tiles, cut.per_item(n_experts)) * n_experts; }
  void run(const Extent& e, int64_t item, int thread) const;

  void (*kernel)(const LinearArgs&);
  const Weight& weight;
  const float* bias;  // [n_experts, N] or null
  Rows x;
  float* out;
  int64_t ldo;
  const int32_t *row_index, *offsets;
  Epilogue epilogue;
  Act act;
  int64_t n_experts;
  TileCut cut;
};

// in: f32 of the tokens, weights [T, k], place of group_pairs; out: f32 of the sorted pairs; top_k.
struct Spread : RowOp<SpreadArgs> {
  static constexpr const char* kName = "spread";
  Spread(const Record& r, const Workspace& w);
};

// in: f32 of the tokens, ids [T, k], place of group_pairs; out: f32 of the sorted pairs; weight: of each
// expert and column the one that goes there; top_k, n_experts. Plain C++, which all levels share.
struct GatherPairs {
  static constexpr const char* kName = "gather_pairs";
  GatherPairs(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(e.tokens, kRowsPerItem); }
  void run(const Extent& e, int64_t item, int thread) const;

  const float *from, *order;
  const int32_t *ids, *place;
  float* to;
  int64_t columns;
  int32_t top_k;
};

// in: f32 of the sorted pairs, weights [T, k] or none, place of group_pairs; out: f32; top_k.
struct Combine : RowOp<CombineArgs> {
  static constexpr const char* kName = "combine";
  Combine(const Record& r, const Workspace& w);
};

}  // namespace kvasir
