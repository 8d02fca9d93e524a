#include "program/ops/moe.h"

#include <algorithm>
#include <stdexcept>

#include "cpu/pack.h"

namespace kvasir {

Route::Route(const Record& r, const Workspace& w) : RowOp{w.kernels.route, {}, w.rows_of(r)} {
  args.logits = w.floats(r.in[0]);
  args.ld = w.columns(r.in[0]);
  args.n_experts = r.n_experts;
  args.k = r.top_k;
  args.bias = w.vector(r.weight[0]);
  args.score = Score(r.score);
  args.n_groups = r.n_groups;
  args.top_groups = r.top_groups;
  args.group_score = GroupScore(r.group_score);
  args.normalize = r.normalize != 0;
  args.scale = r.scale;
  args.ids = w.ints(r.out[0]);
  args.weights = w.floats(r.out[1]);
}

GroupPairs::GroupPairs(const Record& r, const Workspace& w)
    : ids(w.ints(r.in[0])),
      token(w.ints(r.out[0])),
      place(w.ints(r.out[1])),
      offsets(w.ints(r.out[2])),
      n_experts(r.n_experts),
      top_k(r.top_k) {}

void GroupPairs::run(const Extent& e, int64_t, int) const {
  const int64_t pairs = e.tokens * top_k;
  std::fill(offsets, offsets + n_experts + 1, 0);
  for (int64_t p = 0; p < pairs; p++) offsets[ids[p] + 1]++;
  for (int32_t i = 0; i < n_experts; i++) offsets[i + 1] += offsets[i];
  for (int64_t p = 0; p < pairs; p++) {
    place[p] = offsets[ids[p]]++;
    token[place[p]] = int32_t(p / top_k);
  }
  for (int32_t i = n_experts; i > 0; i--) offsets[i] = offsets[i - 1];
  offsets[0] = 0;
}

ExpertLinear::ExpertLinear(const Record& r, const Workspace& w)
    : kernel(w.kernels.linear[int(Form::usual)][int(w.weight(r.weight[0]).layout)]),
      weight(w.weight(r.weight[0])),
      bias(w.vector(r.weight[1])),
      x(w.view(r.in[0])),
      out(w.floats(r.out[0])),
      ldo(w.columns(r.out[0])),
      row_index(r.per_pair ? nullptr : w.ints(r.in[1])),
      offsets(w.ints(r.in[2])),
      epilogue(Epilogue(r.epilogue)),
      act(Act(r.act)),
      n_experts(r.n_experts),
      cut(weight.tiles, w.view(r.out[0]), Epilogue(r.epilogue), w.n_threads) {}

void ExpertLinear::run(const Extent&, int64_t item, int) const {
  const int64_t per_item = cut.per_item(n_experts);
  const int64_t per_expert = ceil_div(weight.tiles, per_item), expert = item / per_expert;
  LinearArgs args{};
  args.layout = weight.layout;
  args.w = weight.data + expert * weight.tiles * tile_bytes(weight.layout, weight.K);
  args.K = int32_t(weight.K);
  args.N = int32_t(weight.N);
  args.tile0 = item % per_expert * per_item;
  args.tile1 = std::min(args.tile0 + per_item, weight.tiles);
  args.x = &x;
  args.m0 = offsets[expert];
  args.m1 = offsets[expert + 1];
  args.epilogue = epilogue;
  args.act = act;
  args.ldo = ldo;
  args.out = out + args.m0 * ldo + first_column(epilogue, args.tile0);
  args.bias = bias ? bias + expert * weight.N : nullptr;
  args.row_index = row_index;
  if (args.m0 < args.m1) kernel(args);
}

Spread::Spread(const Record& r, const Workspace& w) : RowOp{w.kernels.spread, {}, RowCount{1, 0}} {
  args.x = w.floats(r.in[0]);
  args.weights = w.floats(r.in[1]);
  args.row = w.ints(r.in[2]);
  args.k = r.top_k;
  args.ld = args.N = w.columns(r.out[0]);
  args.out = w.floats(r.out[0]);
}

GatherPairs::GatherPairs(const Record& r, const Workspace& w)
    : from(w.floats(r.in[0])),
      order(w.vector(r.weight[0])),
      ids(w.ints(r.in[1])),
      place(w.ints(r.in[2])),
      to(w.floats(r.out[0])),
      columns(w.columns(r.out[0])),
      top_k(r.top_k) {
  for (int64_t i = 0; i < r.n_experts * columns; i++)
    if (!(order[i] >= 0 && order[i] < float(columns)))
      throw std::invalid_argument("gather_pairs names a column that is not there");
}

void GatherPairs::run(const Extent& e, int64_t item, int) const {
  const int64_t p0 = item * kRowsPerItem * top_k, p1 = std::min(p0 + kRowsPerItem * top_k, e.tokens * top_k);
  for (int64_t p = p0; p < p1; p++) {
    const float *x = from + p / top_k * columns, *columns_of = order + ids[p] * columns;
    float* y = to + place[p] * columns;
    for (int64_t i = 0; i < columns; i++) y[i] = x[int32_t(columns_of[i])];
  }
}

Combine::Combine(const Record& r, const Workspace& w) : RowOp{w.kernels.combine, {}, w.rows_of(r)} {
  args.y = w.floats(r.in[0]);
  args.row = w.ints(r.in[2]);
  args.weights = r.in[1] < 0 ? nullptr : w.floats(r.in[1]);
  args.k = r.top_k;
  args.ldy = args.ldo = args.N = w.columns(r.out[0]);
  args.out = w.floats(r.out[0]);
}

}  // namespace kvasir
