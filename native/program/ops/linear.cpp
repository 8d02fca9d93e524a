#include "program/ops/linear.h"

#include "cpu/pack.h"

namespace kvasir {

Linear::Linear(const Record& r, const Workspace& w)
    : workspace(w),
      weight(w.weight(r.weight[0])),
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
  return cut.items(chunks) * chunks;
}

void Linear::run(const Extent& e, int64_t item, int thread) const {
  const int64_t n = rows(e), chunks = ceil_div(n, kLinearRows), per_item = cut.per_item(chunks);
  LinearArgs args{};
  args.layout = weight.layout;
  args.w = weight.data;
  args.K = int32_t(weight.K);
  args.N = int32_t(weight.N);
  // row chunks vary fastest, so that neighbours share the weight tiles
  args.tile0 = item / chunks * per_item;
  args.tile1 = std::min(args.tile0 + per_item, weight.tiles);
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
  workspace.kernels.linear[int(weight.layout)](args);
  if (casts) workspace.cast({args.out, args.ldo, args.m0, args.m1, first}, out);
  if (maxima) maxima->find(args, item / chunks);
}

Bytes Linear::share_of(int thread) const {
  const int64_t per_item = cut.per_item(1), bytes = tile_bytes(weight.layout, weight.K);
  const ItemRange items(thread, workspace.n_threads, cut.items(1));
  return {weight.data + items.begin * per_item * bytes,
          weight.data + std::min(items.end * per_item, weight.tiles) * bytes};
}

}  // namespace kvasir
