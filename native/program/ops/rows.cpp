#include "program/ops/rows.h"

#include <cstring>

namespace kvasir {

Embed::Embed(const Record& r, const Workspace& w) : RowOp{w.kernels.embed, {}, w.rows_of(r)} {
  const Weight& weight = w.weight(r.weight[0]);
  args.w = weight.data;
  args.layout = weight.layout;
  args.K = int32_t(weight.K);
  args.ids = w.arrays.tokens;
  args.scale = r.scale;
  args.out = w.floats(r.out[0]);
  args.ldo = weight.K;
}

EmbedPositions::EmbedPositions(const Record& r, const Workspace& w) : Embed(r, w) { args.ids = w.arrays.pos; }

EmbedTypes::EmbedTypes(const Record& r, const Workspace& w) : Embed(r, w) { args.ids = w.arrays.types; }

EmbedIds::EmbedIds(const Record& r, const Workspace& w) : Embed(r, w) { args.ids = w.ints(r.in[0]); }

Norm::Norm(const Record& r, const Workspace& w) : Norm(r, w, w.kernels.norm) {}

LayerNorm::LayerNorm(const Record& r, const Workspace& w) : Norm(r, w, w.kernels.layer_norm) {}

Norm::Norm(const Record& r, const Workspace& w, void (*kernel)(const NormArgs&))
    : RowOp{kernel, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.ldx = args.K = w.columns(r.in[0]);
  args.weight = w.vector(r.weight[0]);
  args.bias = w.vector(r.weight[1]);
  args.eps = r.eps;
  args.out = w.view(r.out[0]);
}

Cast::Cast(const Record& r, const Workspace& w) : RowOp{w.kernels.cast, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.ldx = args.K = w.columns(r.in[0]);
  args.out = w.view(r.out[0]);
}

void Cast::run(const Extent& e, int64_t item, int) const {
  CastArgs one = of_item(e, item, kRowsPerItem);
  one.x += one.m0 * one.ldx;
  kernel(one);
}

RopeWrite::RopeWrite(const Record& r, const Workspace& w)
    : RowOp{w.kernels.rope_write, {}, w.rows_of(r)}, n_threads(w.n_threads) {
  args.qkv = w.floats(r.in[0]);
  args.ldqkv = w.columns(r.in[0]);
  args.q = w.floats(r.out[0]);
  args.ldq = w.columns(r.out[0]);
  args.kv = &w.kv(r.layer);
  args.n_heads = r.n_heads;
  args.n_kv_heads = args.kv->n_kv_heads;
  args.head_dim = args.kv->head_dim;
  args.rotary_dim = r.rotary_dim;
  args.neox = r.neox != 0;
  const bool by_token = r.in[1] >= 0;
  args.table = by_token ? w.floats(r.in[1]) : w.table(r.table);
  args.q_table = by_token ? args.table : w.table(r.q_table);
  args.norm = QkNorm(r.qk_norm);
  args.q_norm = w.vector(r.weight[0]);
  args.k_norm = w.vector(r.weight[1]);
  args.eps = r.eps;
  args.rows = by_token ? &w.rows_by_token(r.layer) : &w.rows(r.layer);
}

// K keeps 16 neighbouring positions in each cache line: threads that write to the same ones wait for each
// other, which made prefill 3 to 11 % slower. Items of 16 rows have lines of their own where a chunk starts
// at a multiple of 16, as in a prompt alone; else they meet in those at their ends. Few rows are shared
// first; those of as many sequences meet nowhere.
int64_t RopeWrite::rows_per_item(const Extent& e) const {
  if (e.tokens == e.seqs) return std::clamp<int64_t>(ceil_div(e.tokens, n_threads), 1, kRowsPerItem);
  const bool prompts = e.tokens >= kRowsPerItem * e.seqs;
  const bool many = e.tokens >= 2 * kRowsPerItem * n_threads;
  return prompts && many ? 2 * kRowsPerItem : kRowsPerItem;
}

Add::Add(const Record& r, const Workspace& w) : RowOp{w.kernels.add, {}, w.rows_of(r)} {
  args.a = w.floats(r.in[0]);
  args.b = w.floats(r.in[1]);
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
}

Scale::Scale(const Record& r, const Workspace& w) : RowOp{w.kernels.scale, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
  args.scale = r.scale;
  args.softcap = r.softcap;
}

GateRows::GateRows(const Record& r, const Workspace& w) : RowOp{w.kernels.gate_rows, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.gate = w.floats(r.in[1]);
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
}

MergeEmbeds::MergeEmbeds(const Record& r, const Workspace& w)
    : own(w.floats(r.in[0])),
      given(w.floats(r.in[1])),
      is_given(w.ints(r.in[2])),
      out(w.floats(r.out[0])),
      columns(w.columns(r.out[0])) {}

void MergeEmbeds::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, e.tokens);
  for (int64_t m = m0; m < m1; m++)
    std::memcpy(out + m * columns, (is_given[m] ? given : own) + m * columns, size_t(columns) * 4);
}

AddEmbeds::AddEmbeds(const Record& r, const Workspace& w) : MergeEmbeds(r, w) {}

void AddEmbeds::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, e.tokens);
  for (int64_t m = m0; m < m1; m++) {
    const float *x = own + m * columns, *y = given + m * columns;
    float* to = out + m * columns;
    for (int64_t i = 0; i < columns; i++) to[i] = is_given[m] ? x[i] + y[i] : x[i];
  }
}

GatherRows::GatherRows(const Record& r, const Workspace& w)
    : from(w.floats(r.in[0])),
      to(w.floats(r.out[0])),
      columns(w.columns(r.in[0])),
      token(w.arrays.logit_token) {}

void GatherRows::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, e.logits);
  for (int64_t m = m0; m < m1; m++)
    std::memcpy(to + m * columns, from + token[e.logit_begin + m] * columns, size_t(columns) * 4);
}

JoinColumns::JoinColumns(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)), to(w.floats(r.out[0])), width(w.columns(r.out[0])) {
  for (size_t i = 0; i < 3 && r.in[i] >= 0; i++) from[i] = w.floats(r.in[i]), columns[i] = w.columns(r.in[i]);
}

void JoinColumns::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, rows(e));
  for (int64_t m = m0; m < m1; m++) {
    float* out = to + m * width;
    for (size_t i = 0; i < 3; i++) out = std::copy_n(from[i] + m * columns[i], columns[i], out);
  }
}

}  // namespace kvasir
