#include "program/ops/linear.h"

#include "cpu/pack.h"

namespace kvasir {

Linear::Linear(const Record& r, const Workspace& w)
    : workspace(w),
      weight_id(r.weight[0]),
      weight(w.weight(weight_id)),
      x(w.view(r.in[0])),
      out(w.view(r.out[0])),
      residual(r.in[1] < 0 ? nullptr : w.floats(r.in[1])),
      bias(w.vector(r.weight[1])),
      column(r.column),
      epilogue(Epilogue(r.epilogue)),
      act(Act(r.act)),
      cut(weight.tiles, out, epilogue, w.n_threads),
      rows(w.rows_of(r)) {}

int64_t Linear::items(const Extent& e) const {
  const int64_t chunks = ceil_div(rows(e), kLinearRows);
  return ceil_div(cut.tiles, per_item(e)) * chunks;
}

// Where the largest of the outputs are found, they lie by items.
int64_t Linear::per_item(const Extent& e) const {
  const int64_t n = rows(e), chunks = ceil_div(n, kLinearRows);
  return maxima ? cut.per_item(chunks) : cut.per_item(chunks, workspace.variant(weight_id, n).items);
}

void Linear::run(const Extent& e, int64_t item, int thread) const {
  const int64_t n = rows(e), chunks = ceil_div(n, kLinearRows), of_item = per_item(e);
  const Variant& variant = workspace.variant(weight_id, n);
  LinearArgs args{};
  args.layout = weight.layout;
  args.w = weight.data;
  args.K = int32_t(weight.K);
  args.N = int32_t(weight.N);
  // row chunks vary fastest, so that neighbours share the weight tiles
  args.tile0 = item / chunks * of_item;
  args.tile1 = std::min(args.tile0 + of_item, weight.tiles);
  args.x = &x;
  args.m0 = item % chunks * kLinearRows;
  args.m1 = std::min(args.m0 + kLinearRows, n);
  args.epilogue = epilogue;
  args.act = act;
  args.bias = bias;
  const int64_t first = column + first_column(epilogue, args.tile0), at = args.m0 * out.ld + first;
  const bool casts = out.dtype != DType::f32;
  args.ldo = casts ? column + first_column(epilogue, args.tile1) - first : out.ld;
  args.out = casts ? workspace.output(thread) : static_cast<float*>(out.data) + at;
  args.residual = residual ? residual + at : nullptr;
  args.shape = variant.shape;
  workspace.kernels.linear[int(variant.form)][int(weight.layout)](args);
  if (casts) workspace.cast({args.out, args.ldo, args.m0, args.m1, first}, out);
  if (maxima) maxima->find(args, item / chunks);
}

Bytes Linear::bytes_of(const Extent& e, int64_t begin, int64_t end) const {
  const int64_t of_item = per_item(e), bytes = tile_bytes(weight.layout, weight.K);
  return {weight.data + begin * of_item * bytes, weight.data + std::min(end * of_item, weight.tiles) * bytes};
}

}  // namespace kvasir
