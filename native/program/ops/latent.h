// Latent attention: linears of single heads, entries into the blocks, and attention over them.
#pragma once
#include "program/ops/attention.h"
#include "program/ops/rows.h"
#include "program/ops/tiles.h"

namespace kvasir {

// in: rows of all heads, as the layout takes them; out: f32; weight: a matrix of each head; n_heads.
struct HeadLinear {
  static constexpr const char* kName = "head_linear";
  HeadLinear(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(rows(e), kLinearRows) * n_heads; }
  void run(const Extent& e, int64_t item, int thread) const;

  void (*kernel)(const LinearArgs&);
  const Weight& weight;
  Rows x;
  float* out;
  int64_t ldo, n_heads;
  RowCount rows;
};

// in: latent | key rows, queries' parts that turn; out: these turned; weight: of the norm; layer, n_heads,
// rotary_dim, neox, table, eps.
struct LatentWrite : RowOp<LatentWriteArgs> {
  static constexpr const char* kName = "latent_write";
  LatentWrite(const Record& r, const Workspace& w);
};

// in: absorbed queries, their parts that turn; out: f32; layer, n_heads, scale.
struct LatentAttention : Attention {
  static constexpr const char* kName = "latent_attention";
  LatentAttention(const Record& r, Workspace& w);
};

// Says of every layer with latents into how many KV heads its items are cut, and of the program how many
// query heads one of them serves at most.
ProgramSpec with_latent_heads(ProgramSpec spec);

}  // namespace kvasir
