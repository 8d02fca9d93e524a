#include "program/program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace kvasir {

Program::Program(Pool& pool, const Kernels& kernels, Sampler& sampler, ProgramSpec spec, uint8_t* arena,
                 StepArrays arrays)
    : pool_(pool), kernels_(kernels), sampler_(sampler), spec_(std::move(spec)), arena_(arena), a_(arrays) {
  const int64_t n = int64_t(spec_.records.size());
  first_tail_ = -1;
  for (int64_t r = 0; r < n; r++) {
    const Record& record = spec_.records[size_t(r)];
    if (r == 0 || record.phase != spec_.records[size_t(r - 1)].phase) phases_.push_back({r, r});
    phases_.back().end = r + 1;
    if (record.tail && first_tail_ < 0) first_tail_ = int64_t(phases_.size()) - 1;
  }
  n_phases_ = int64_t(phases_.size());
  if (first_tail_ < 0) first_tail_ = n_phases_;
  const int64_t repeats = ceil_div(spec_.max_logits, spec_.logits_tile);
  counters_ = std::vector<Counter>(size_t(n_phases_ + (n_phases_ - first_tail_) * repeats));
  for (Counter& counter : counters_) counter.shares = std::make_unique<Share[]>(size_t(pool_.size()));
  int32_t n_groups = 1;
  for (const int32_t group : spec_.kv_groups) n_groups = std::max(n_groups, group + 1);
  step_rows_.resize(size_t(n_groups));
  previous_.reserve(size_t(spec_.max_logits));
  paths_.reserve(size_t(a_.max_path));
  plan_scratch();
  plan_maxima();
  plan_splits();
}

void Program::plan_scratch() {
  for (const Buffer& buffer : spec_.buffers)
    if (DType(buffer.dtype) == DType::q8 && buffer.block > kMaxCompactBlock)
      throw std::invalid_argument("int8 rows in blocks of " + std::to_string(buffer.block) +
                                  ": the kernels take at most " + std::to_string(kMaxCompactBlock));
  const int64_t tokens = most_attention_tokens(), group = spec_.group_max, head_dim = spec_.head_dim_max;
  output_at_ = attention_scratch(tokens, group, head_dim);
  // a gated item has half a tile's columns, so that the largest block fits as well
  const int64_t columns = kItemTiles * kTileCols;
  static_assert(kItemTiles * kTileCols >= kMaxCompactBlock);
  const int64_t floats = output_at_ + std::max(tokens * group * head_dim, kLinearRows * columns) + 16;
  for (int t = 0; t < pool_.size(); t++) {
    scratch_memory_.emplace_back(size_t(floats));
    const auto address = reinterpret_cast<uintptr_t>(scratch_memory_.back().data());
    scratch_.push_back(reinterpret_cast<float*>((address + 63) / 64 * 64));
  }
}

void Program::plan_maxima() {
  int32_t logits = -1, writers = 0;
  for (const Record& r : spec_.records)
    if (OpKind(r.kind) == OpKind::sample) logits = r.in[0];
  for (const Record& r : spec_.records) {
    if (logits < 0 || std::find(r.out, r.out + 3, logits) == r.out + 3) continue;
    head_ = &r;
    writers++;
  }
  if (writers != 1 || OpKind(head_->kind) != OpKind::linear || !head_->tail ||
      spec_.weights[size_t(head_->weight[0])].N != spec_.buffers[size_t(logits)].columns) {
    head_ = nullptr;
    return;
  }
  const int64_t tiles = spec_.weights[size_t(head_->weight[0])].tiles;
  max_runs_ = ceil_div(tiles, tiles_per_item(*head_, tiles, 1));
  maxima_.resize(size_t(spec_.logits_tile * max_runs_));
}

void Program::run(StepSize size, int64_t until, double* seconds, float* logits) {
  if (size.tokens < 1 || size.tokens > spec_.max_tokens || size.seqs < 1 || size.seqs > size.tokens ||
      size.logits < 0 || size.logits > spec_.max_logits)
    throw std::invalid_argument("step larger than planned");
  until_ = until;
  seconds_ = seconds;
  logits_out_ = logits;
  prepare(size);
  pool_.run(enter, this);
  if (failure_) std::rethrow_exception(failure_);
  previous_.assign(a_.drawn, a_.drawn + size.logits);
}

void Program::prepare(StepSize size) {
  size_ = size;
  for (size_t g = 0; g < step_rows_.size(); g++)
    step_rows_[g] = {size.tokens,  size.seqs,
                     a_.seq,       a_.pos,
                     a_.store,     a_.parent,
                     a_.seq_begin, a_.seq_start,
                     a_.seq_tree,  a_.tables + int64_t(g) * a_.max_seqs * a_.max_blocks,
                     a_.max_blocks};
  for (Counter& counter : counters_) {
    for (int i = 0; i < pool_.size(); i++) counter.shares[i].next.store(0, std::memory_order_relaxed);
    counter.done.store(0, std::memory_order_relaxed);
  }
  failure_ = nullptr;
  resolve_references();
  cut_attention();
}

void Program::resolve_references() {
  const auto resolve = [this](int32_t token) -> int32_t {
    if (token >= 0) return token;
    const size_t row = size_t(-1 - token);
    // a row that was not finite drew -1: its request ends at commit, any id will do until then
    return row < previous_.size() ? std::max(previous_[row], 0) : 0;
  };
  for (int64_t t = 0; t < size_.tokens; t++) a_.tokens[t] = resolve(a_.tokens[t]);
  const int32_t n = size_.logits ? a_.path_begin[size_.logits] : 0;
  paths_.resize(size_t(n));
  for (int32_t i = 0; i < n; i++) paths_[size_t(i)] = resolve(a_.path[i]);
}

int64_t Program::rows(const Record& r, const Tile& tile) const {
  if (r.tail) return tile.rows;
  return RowsOf(r.rows_of) == RowsOf::pairs ? size_.tokens * spec_.top_k : size_.tokens;
}

int64_t Program::tiles_per_item(const Record& r, int64_t tiles, int64_t row_chunks) const {
  // kernels take tiles by twos, gate and up belong together, and what becomes int8 comes in whole blocks
  const int64_t block = spec_.buffers[size_t(r.out[0])].block;
  const int64_t unit = std::max<int64_t>(2, 2 * block / kTileCols);
  const int64_t wanted = tiles * row_chunks / (kItemsPerThread * pool_.size());
  return std::clamp<int64_t>(wanted / unit * unit, unit, std::max(unit, kItemTiles / unit * unit));
}

int64_t Program::items(const Record& r, const Tile& tile) const {
  const int64_t n = rows(r, tile);
  switch (OpKind(r.kind)) {
    case OpKind::linear: {
      const int64_t tiles = spec_.weights[size_t(r.weight[0])].tiles, chunks = ceil_div(n, kLinearRows);
      return ceil_div(tiles, tiles_per_item(r, tiles, chunks)) * chunks;
    }
    case OpKind::expert_linear: {
      const int64_t tiles = spec_.weights[size_t(r.weight[0])].tiles;
      return ceil_div(tiles, tiles_per_item(r, tiles, r.i[4])) * r.i[4];
    }
    case OpKind::attention:
      return int64_t(parts_.size()) * spec_.kv[size_t(r.i[3])].n_kv_heads;
    case OpKind::group_pairs:
      return 1;
    case OpKind::sample:
      return n;
    default:
      return ceil_div(n, rows_per_item(r));
  }
}

void Program::run_item(const Record& r, const Tile& tile, int64_t item, int thread) {
  switch (OpKind(r.kind)) {
    case OpKind::embed:
      return embed(r, tile, item);
    case OpKind::norm:
      return norm(r, tile, item);
    case OpKind::cast:
      return cast(r, tile, item);
    case OpKind::linear:
      return linear(r, tile, item, thread);
    case OpKind::rope_write:
      return rope_write(r, tile, item);
    case OpKind::attention:
      return attention(r, item, thread);
    case OpKind::add:
      return add(r, tile, item);
    case OpKind::scale:
      return scale(r, tile, item);
    case OpKind::gather_rows:
      return gather_rows(r, tile, item);
    case OpKind::route:
      return route(r, tile, item);
    case OpKind::group_pairs:
      return group_pairs(r);
    case OpKind::expert_linear:
      return expert_linear(r, item);
    case OpKind::combine:
      return combine(r, tile, item);
    case OpKind::sample:
      return sample(r, tile, item);
  }
}

}  // namespace kvasir
