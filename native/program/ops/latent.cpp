#include "program/ops/latent.h"

#include <string_view>

#include "cpu/pack.h"
#include "program/op.h"

namespace kvasir {
namespace {

// The same rows from a column on.
Rows from_column(Rows rows, int64_t column) {
  const int64_t bytes = rows.dtype == DType::bf16 ? 2 : 4;
  rows.data = static_cast<uint8_t*>(rows.data) + column * bytes;
  return rows;
}

// Of one item: the largest divisor that is not more than the kernels' limit.
int32_t heads_of_item(int32_t n_heads) {
  int32_t n = std::min(n_heads, kLatentHeads);
  while (n_heads % n) n--;
  return n;
}

}  // namespace

HeadLinear::HeadLinear(const Record& r, const Workspace& w)
    : kernel(w.kernels.linear[int(Form::usual)][int(w.weight(r.weight[0]).layout)]),
      weight(w.weight(r.weight[0])),
      x(w.view(r.in[0])),
      out(w.floats(r.out[0])),
      ldo(w.columns(r.out[0])),
      n_heads(r.n_heads),
      rows(w.rows_of(r)) {
  if (x.dtype == DType::q8) throw std::invalid_argument("linears of single heads take no int8 rows");
}

void HeadLinear::run(const Extent& e, int64_t item, int) const {
  const int64_t head = item % n_heads, chunk = item / n_heads;
  const Rows mine = from_column(x, head * weight.K);
  LinearArgs args{};
  args.layout = weight.layout;
  args.w = weight.data + head * weight.tiles * tile_bytes(weight.layout, weight.K);
  args.K = int32_t(weight.K);
  args.N = int32_t(weight.N);
  args.tile1 = weight.tiles;
  args.x = &mine;
  args.m0 = chunk * kLinearRows;
  args.m1 = std::min(args.m0 + kLinearRows, rows(e));
  args.ldo = ldo;
  args.out = out + args.m0 * ldo + head * weight.N;
  kernel(args);
}

LatentWrite::LatentWrite(const Record& r, const Workspace& w)
    : RowOp{w.kernels.latent_write, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.ldx = w.columns(r.in[0]);
  args.q = w.floats(r.in[1]);
  args.out = w.floats(r.out[0]);
  args.ldq = w.columns(r.out[0]);
  args.n_heads = r.n_heads;
  args.rotary_dim = r.rotary_dim;
  args.neox = r.neox != 0;
  args.table = w.table(r.table);
  args.norm = w.vector(r.weight[0]);
  args.eps = r.eps;
  args.kv = &w.kv(r.layer);
  args.rows = &w.rows(r.layer);
}

LatentAttention::LatentAttention(const Record& r, Workspace& w) : Attention(r, w) {
  args.turned = w.floats(r.in[1]);
  args.ldt = w.columns(r.in[1]);
}

ProgramSpec with_latent_heads(ProgramSpec spec) {
  for (const Record& r : spec.records) {
    if (op_name(r.kind) != std::string_view(LatentAttention::kName)) continue;
    KvLayer& kv = spec.kv.at(size_t(r.layer));
    if (!kv.latent) throw std::invalid_argument("latent attention of a layer without latents");
    const int32_t heads = heads_of_item(r.n_heads);
    kv.n_kv_heads = r.n_heads / heads;
    spec.group_max = std::max<int64_t>(spec.group_max, heads);
  }
  return spec;
}

}  // namespace kvasir
