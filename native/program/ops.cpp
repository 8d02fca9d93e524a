// Each op of a record as a kernel call: from buffer and weight ids to pointers.
#include <algorithm>
#include <cstring>

#include "cpu/pack.h"
#include "program/program.h"

namespace kvasir {

Rows Program::view(int32_t id) const {
  const Buffer& b = spec_.buffers[size_t(id)];
  Rows rows{DType(b.dtype), b.block, arena_ + b.offset, b.columns, nullptr, nullptr};
  if (rows.dtype == DType::q8) {
    const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    uint8_t* scales = arena_ + b.offset + aligned(int64_t(b.max_rows) * b.columns);
    rows.scales = reinterpret_cast<float*>(scales);
    rows.sums = reinterpret_cast<int32_t*>(scales + aligned(int64_t(b.max_rows) * (b.columns / b.block) * 4));
  }
  return rows;
}

float* Program::floats(int32_t id) const {
  return reinterpret_cast<float*>(arena_ + spec_.buffers[size_t(id)].offset);
}
int32_t* Program::ints(int32_t id) const {
  return reinterpret_cast<int32_t*>(arena_ + spec_.buffers[size_t(id)].offset);
}
const float* Program::vector(int32_t id) const {
  return id < 0 ? nullptr : reinterpret_cast<const float*>(spec_.weights[size_t(id)].data);
}

// K keeps 16 neighbouring positions in each cache line: threads that write to the same ones wait for each
// other, which made prefill 3 to 11 % slower. Items of 16 rows have lines of their own where a chunk starts
// at a multiple of 16, as in a prompt alone; else they meet in those at their ends. Few rows are shared
// first.
int64_t Program::rows_per_item(const Record& r) const {
  const bool prompts = size_.tokens >= kRowsPerItem * size_.seqs;
  const bool many = size_.tokens >= 2 * kRowsPerItem * pool_.size();
  return OpKind(r.kind) == OpKind::rope_write && prompts && many ? 2 * kRowsPerItem : kRowsPerItem;
}

void Program::share(const Record& r, const Tile& tile, int64_t item, int64_t* m0, int64_t* m1) const {
  const int64_t n = rows_per_item(r);
  *m0 = item * n;
  *m1 = std::min(*m0 + n, rows(r, tile));
}

void Program::embed(const Record& r, const Tile& tile, int64_t item) {
  const Weight& w = spec_.weights[size_t(r.weight[0])];
  EmbedArgs args{w.data, w.layout, int32_t(w.K), a_.tokens, r.f[0], floats(r.out[0]), w.K, 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.embed(args);
}

void Program::norm(const Record& r, const Tile& tile, int64_t item) {
  const int32_t K = spec_.buffers[size_t(r.in[0])].columns;
  NormArgs args{floats(r.in[0]), K, vector(r.weight[0]), K, r.f[0], view(r.out[0]), 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.norm(args);
}

void Program::cast(const Record& r, const Tile& tile, int64_t item) {
  const int32_t K = spec_.buffers[size_t(r.in[0])].columns;
  CastArgs args{floats(r.in[0]), K, K, view(r.out[0]), 0, 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  args.x += args.m0 * K;
  kernels_.cast(args);
}

// What an item computed becomes columns [column, ...) of rows [m0, m1), while it is in a cache.
void Program::cast_item(const float* x, int64_t ldx, int32_t buffer, int64_t m0, int64_t m1, int64_t column) {
  const Rows out = view(buffer);
  kernels_.cast({x, ldx, int32_t(std::min(ldx, out.ld - column)), out, m0, m1, int32_t(column)});
}

void Program::linear(const Record& r, const Tile& tile, int64_t item, int thread) {
  const Weight& w = spec_.weights[size_t(r.weight[0])];
  const int64_t n = rows(r, tile), chunks = ceil_div(n, kLinearRows);
  const int64_t per_item = tiles_per_item(r, w.tiles, chunks);
  const Rows x = view(r.in[0]);
  LinearArgs args{};
  args.layout = w.layout;
  args.w = w.data;
  args.K = int32_t(w.K);
  args.N = int32_t(w.N);
  // row chunks vary fastest, so that neighbours share the weight tiles
  args.tile0 = item / chunks * per_item;
  args.tile1 = std::min(args.tile0 + per_item, w.tiles);
  args.x = &x;
  args.m0 = item % chunks * kLinearRows;
  args.m1 = std::min(args.m0 + kLinearRows, n);
  args.epilogue = Epilogue(r.i[1]);
  args.act = Act(r.i[2]);
  const Buffer& out = spec_.buffers[size_t(r.out[0])];
  const int64_t column = first_column(args.epilogue, args.tile0),
                at = args.m0 * out.columns + column + r.i[0];
  const bool casts = DType(out.dtype) != DType::f32;
  args.ldo = casts ? first_column(args.epilogue, args.tile1) - column : out.columns;
  args.out = casts ? scratch_[size_t(thread)] + output_at_ : floats(r.out[0]) + at;
  args.residual = r.in[1] < 0 ? nullptr : floats(r.in[1]) + at;
  args.bias = vector(r.weight[1]);
  kernels_.linear[int(w.layout)](args);
  if (casts) cast_item(args.out, args.ldo, r.out[0], args.m0, args.m1, column);
  if (&r == head_) find_maxima(args, item / chunks);
}

void Program::find_maxima(const LinearArgs& args, int64_t run) {
  const int64_t begin = args.tile0 * kTileCols, end = std::min<int64_t>(args.tile1 * kTileCols, args.N);
  for (int64_t m = args.m0; m < args.m1; m++)
    maxima_[size_t(m * max_runs_ + run)] = row_max(args.out + (m - args.m0) * args.ldo, end - begin);
}

Maxima Program::maxima_of(const Tile& tile, int64_t row) const {
  if (head_ == nullptr) return {};
  const int64_t tiles = spec_.weights[size_t(head_->weight[0])].tiles;
  const int64_t per_item = tiles_per_item(*head_, tiles, ceil_div(tile.rows, kLinearRows));
  const size_t n_runs = size_t(ceil_div(tiles, per_item));
  return {{maxima_.data() + row * max_runs_, n_runs}, per_item * kTileCols};
}

void Program::expert_linear(const Record& r, int64_t item) {
  const Weight& w = spec_.weights[size_t(r.weight[0])];
  const int64_t per_item = tiles_per_item(r, w.tiles, r.i[4]);
  const int64_t per_expert = ceil_div(w.tiles, per_item), expert = item / per_expert;
  const int32_t* offsets = ints(r.in[2]);
  const Rows x = view(r.in[0]);
  LinearArgs args{};
  args.layout = w.layout;
  args.w = w.data + expert * w.tiles * tile_bytes(w.layout, w.K);
  args.K = int32_t(w.K);
  args.N = int32_t(w.N);
  args.tile0 = item % per_expert * per_item;
  args.tile1 = std::min(args.tile0 + per_item, w.tiles);
  args.x = &x;
  args.m0 = offsets[expert];
  args.m1 = offsets[expert + 1];
  args.epilogue = Epilogue(r.i[1]);
  args.act = Act(r.i[2]);
  args.ldo = spec_.buffers[size_t(r.out[0])].columns;
  args.out = floats(r.out[0]) + args.m0 * args.ldo + first_column(args.epilogue, args.tile0);
  args.row_index = r.i[3] ? nullptr : ints(r.in[1]);
  if (args.m0 < args.m1) kernels_.linear[int(w.layout)](args);
}

void Program::rope_write(const Record& r, const Tile& tile, int64_t item) {
  RopeWriteArgs args{};
  args.qkv = floats(r.in[0]);
  args.ldqkv = spec_.buffers[size_t(r.in[0])].columns;
  args.q = floats(r.out[0]);
  args.ldq = spec_.buffers[size_t(r.out[0])].columns;
  args.kv = &spec_.kv[size_t(r.i[3])];
  args.n_heads = r.i[4];
  args.n_kv_heads = args.kv->n_kv_heads;
  args.head_dim = args.kv->head_dim;
  args.rotary_dim = r.i[5];
  args.neox = r.i[6] != 0;
  args.table = spec_.tables[size_t(r.i[7])];
  args.q_norm = vector(r.weight[0]);
  args.k_norm = vector(r.weight[1]);
  args.eps = r.f[0];
  args.rows = &step_rows_[size_t(spec_.kv_groups[size_t(r.i[3])])];
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.rope_write(args);
}

void Program::add(const Record& r, const Tile& tile, int64_t item) {
  const int32_t N = spec_.buffers[size_t(r.out[0])].columns;
  AddArgs args{floats(r.in[0]), floats(r.in[1]), floats(r.out[0]), N, N, 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.add(args);
}

void Program::scale(const Record& r, const Tile& tile, int64_t item) {
  const int32_t N = spec_.buffers[size_t(r.out[0])].columns;
  ScaleArgs args{floats(r.in[0]), floats(r.out[0]), N, N, r.f[0], r.f[1], 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.scale(args);
}

void Program::gather_rows(const Record& r, const Tile& tile, int64_t item) {
  const size_t K = size_t(spec_.buffers[size_t(r.in[0])].columns);
  int64_t m0, m1;
  share(r, tile, item, &m0, &m1);
  for (int64_t m = m0; m < m1; m++)
    std::memcpy(floats(r.out[0]) + size_t(m) * K,
                floats(r.in[0]) + size_t(a_.logit_token[tile.begin + m]) * K, K * 4);
}

void Program::route(const Record& r, const Tile& tile, int64_t item) {
  RouteArgs args{};
  args.logits = floats(r.in[0]);
  args.ld = spec_.buffers[size_t(r.in[0])].columns;
  args.n_experts = r.i[0];
  args.k = r.i[1];
  args.normalize = r.i[2] != 0;
  args.ids = ints(r.out[0]);
  args.weights = floats(r.out[1]);
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.route(args);
}

// Counting sort of the pairs by expert, stable: out0 token of each sorted pair, out1 sorted place of each
// pair, out2 [n_experts + 1] first sorted pair of each expert.
void Program::group_pairs(const Record& r) {
  const int32_t n_experts = r.i[0], k = r.i[1];
  const int64_t pairs = size_.tokens * k;
  const int32_t* ids = ints(r.in[0]);
  int32_t *token = ints(r.out[0]), *place = ints(r.out[1]), *offsets = ints(r.out[2]);
  std::fill(offsets, offsets + n_experts + 1, 0);
  for (int64_t p = 0; p < pairs; p++) offsets[ids[p] + 1]++;
  for (int32_t e = 0; e < n_experts; e++) offsets[e + 1] += offsets[e];
  for (int64_t p = 0; p < pairs; p++) {
    place[p] = offsets[ids[p]]++;
    token[place[p]] = int32_t(p / k);
  }
  for (int32_t e = n_experts; e > 0; e--) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void Program::combine(const Record& r, const Tile& tile, int64_t item) {
  const int32_t N = spec_.buffers[size_t(r.out[0])].columns;
  CombineArgs args{floats(r.in[0]), N, ints(r.in[2]), floats(r.in[1]), r.i[1], N, floats(r.out[0]), N, 0, 0};
  share(r, tile, item, &args.m0, &args.m1);
  kernels_.combine(args);
}

void Program::sample(const Record& r, const Tile& tile, int64_t item) {
  const int64_t row = tile.begin + item, vocab = spec_.buffers[size_t(r.in[0])].columns;
  float* logits = floats(r.in[0]) + item * vocab;
  if (spec_.hashes) a_.hash[row] = hash_row(logits, vocab);
  if (logits_out_) std::memcpy(logits_out_ + row * vocab, logits, size_t(vocab) * 4);
  const std::span<const int32_t> path(paths_.data() + a_.path_begin[row],
                                      size_t(a_.path_begin[row + 1] - a_.path_begin[row]));
  const Drawn drawn = sampler_.sample(a_.logit_slot[row], logits, a_.logit_out_index[row], path,
                                      a_.logit_target[row], maxima_of(tile, item));
  a_.drawn[row] = drawn.token;
  a_.logprob[row] = drawn.logprob;
  a_.rank[row] = drawn.rank;
  const int64_t n = std::min<int64_t>(a_.max_top, int64_t(drawn.top.size()));
  a_.top_count[row] = int32_t(n);
  for (int64_t j = 0; j < n; j++) {
    a_.top_ids[row * a_.max_top + j] = drawn.top[size_t(j)].first;
    a_.top_logprobs[row * a_.max_top + j] = drawn.top[size_t(j)].second;
  }
}

}  // namespace kvasir
