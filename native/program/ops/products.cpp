#include "program/ops/products.h"

#include <stdexcept>

namespace kvasir {

MulColumns::MulColumns(const Record& r, const Workspace& w) : RowOp{w.kernels.mul, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.y = w.floats(r.in[1]) + r.column;
  args.ldy = w.columns(r.in[1]);
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
}

SquaredRelu::SquaredRelu(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)), columns(w.columns(r.in[0])), from(w.floats(r.in[0])), to(w.floats(r.out[0])) {}

void SquaredRelu::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, rows(e));
  for (int64_t i = m0 * columns; i < m1 * columns; i++) {
    const float x = from[i] < 0.0f ? 0.0f : from[i];  // NaN where the input is
    to[i] = x * x;
  }
}

GatherColumns::GatherColumns(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)), from(w.floats(r.in[0])), to(w.floats(r.out[0])), order(size_t(w.columns(r.in[0]))) {
  const float* places = w.vector(r.weight[0]);
  for (size_t i = 0; i < order.size(); i++) {
    if (!(places[i] >= 0 && places[i] < float(order.size())))
      throw std::invalid_argument("gather_columns names a column that is not there");
    order[i] = int32_t(places[i]);
  }
}

void GatherColumns::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, rows(e));
  const int64_t columns = int64_t(order.size());
  for (int64_t m = m0; m < m1; m++)
    for (int64_t i = 0; i < columns; i++) to[m * columns + i] = from[m * columns + order[size_t(i)]];
}

Weigh::Weigh(const Record& r, const Workspace& w) : RowOp{w.kernels.mul, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.y = w.vector(r.weight[0]);
  args.ldy = 0;
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
}

WeighExperts::WeighExperts(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)),
      top_k(w.columns(r.in[0])),
      shares(w.floats(r.in[0])),
      factors(w.vector(r.weight[0])),
      ids(w.ints(r.in[1])),
      out(w.floats(r.out[0])) {}

void WeighExperts::run(const Extent& e, int64_t item, int) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, rows(e));
  for (int64_t i = m0 * top_k; i < m1 * top_k; i++) out[i] = shares[i] * factors[ids[i]];
}

HeadNorm::HeadNorm(const Record& r, const Workspace& w) : RowOp{w.kernels.norm, {}, w.rows_of(r)} {
  rows = {rows.per_token * r.n_heads, rows.per_logit * r.n_heads};
  args.x = w.floats(r.in[0]);
  args.ldx = args.K = w.columns(r.in[0]) / r.n_heads;
  args.weight = w.vector(r.weight[0]);
  args.eps = r.eps;
  args.out = w.view(r.out[0]);
  args.out.ld = args.K;
}

RopeHeads::RopeHeads(const Record& r, const Workspace& w) : RowOp{w.kernels.rope_write, {}, w.rows_of(r)} {
  args.qkv = w.floats(r.in[0]);
  args.q = w.floats(r.out[0]);
  args.ldqkv = args.ldq = w.columns(r.in[0]);
  args.n_heads = r.n_heads;
  args.head_dim = int32_t(args.ldq / r.n_heads);
  args.rotary_dim = r.rotary_dim;
  args.neox = r.neox != 0;
  const bool by_token = r.in[1] >= 0;
  args.q_table = by_token ? w.floats(r.in[1]) : w.table(r.table);
  args.norm = QkNorm(r.qk_norm);
  args.q_norm = w.vector(r.weight[0]);
  args.eps = r.eps;
  args.rows = by_token ? &w.rows_by_token(0) : &w.rows(0);  // their positions are those of all
}

}  // namespace kvasir
