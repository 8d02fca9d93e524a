#include "program/workspace.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "program/ops/latent.h"
#include "program/ops/tiles.h"

namespace kvasir {
namespace {

template <class T>
const T& at(const std::vector<T>& all, int64_t id, const char* what) {
  if (id < 0 || id >= int64_t(all.size()))
    throw std::invalid_argument("a record names " + std::string(what) + " " + std::to_string(id) + " of " +
                                std::to_string(all.size()));
  return all[size_t(id)];
}

}  // namespace

Workspace::Workspace(int n_threads, const Kernels& kernels, const Sampler& sampler, ProgramSpec spec,
                     uint8_t* arena, StepArrays arrays)
    : n_threads(n_threads),
      kernels(kernels),
      sampler(sampler),
      spec(with_latent_heads(std::move(spec))),
      arrays(arrays),
      cut(this->spec, arrays, n_threads),
      arena_(arena),
      choices_(this->spec.weights.size()) {
  int32_t n_groups = 1;
  for (const int32_t group : this->spec.kv_groups) n_groups = std::max(n_groups, group + 1);
  step_rows_.resize(size_t(n_groups));
  token_rows_.resize(size_t(n_groups));
  numbers_.resize(size_t(this->spec.max_tokens));
  std::iota(numbers_.begin(), numbers_.end(), 0);
  previous_.reserve(size_t(this->spec.max_logits));
  paths_.reserve(size_t(arrays.max_path));
  plan_scratch();
}

void Workspace::plan_scratch() {
  for (const Buffer& buffer : spec.buffers)
    if (DType(buffer.dtype) == DType::q8 && buffer.block > kMaxCompactBlock)
      throw std::invalid_argument("int8 rows in blocks of " + std::to_string(buffer.block) +
                                  ": the kernels take at most " + std::to_string(kMaxCompactBlock));
  const int64_t tokens = cut.most_tokens(), group = spec.group_max, head_dim = spec.head_dim_max;
  output_at_ = attention_scratch(tokens, group, head_dim);
  // a gated item has half a tile's columns, so that the largest block fits as well
  const int64_t columns = kItemTiles * kTileCols;
  static_assert(kItemTiles * kTileCols >= kMaxCompactBlock);
  const int64_t most = std::max(tokens * group * head_dim, kLinearRows * columns);
  const int64_t floats = std::max(output_at_ + most, spec.draft_floats);
  for (int t = 0; t < n_threads; t++) scratch_.emplace_back(floats);
}

void Workspace::begin(StepSize size, const StepMasks& step_masks, float* logits) {
  const StepArrays& a = arrays;
  for (size_t g = 0; g < step_rows_.size(); g++) {
    step_rows_[g] = {
        size.tokens, size.seqs,   a.seq,       a.pos,      a.store,
        a.parent,    a.seq_begin, a.seq_start, a.seq_tree, a.tables + int64_t(g) * a.max_seqs * a.max_blocks,
        a.max_blocks};
    token_rows_[g] = step_rows_[g];
    token_rows_[g].pos = numbers_.data();
  }
  masks = step_masks;
  logits_out = logits;
  resolve_references(size);
  cut.begin(size);
}

void Workspace::choose(int32_t id, int row_class, int variant) {
  const std::vector<int> has = variants_for(kernels, weight(id).layout, row_class);
  if (row_class < 0 || row_class >= kRowClasses || std::find(has.begin(), has.end(), variant) == has.end())
    throw std::invalid_argument("weight " + std::to_string(id) + " has no variant " +
                                std::to_string(variant) + " for rows of class " + std::to_string(row_class));
  choices_[size_t(id)][size_t(row_class)] = uint8_t(variant);
}

void Workspace::end(StepSize size) { previous_.assign(arrays.drawn, arrays.drawn + size.logits); }

void Workspace::keep_drafts(int64_t n) {
  max_drafts_ = n;
  drafts_.assign(size_t(spec.max_logits * n), 0);
}

void Workspace::set_draft(int64_t row, int64_t draft, int32_t token) {
  drafts_[size_t(row * max_drafts_ + draft)] = token;
}

// A row that was not finite drew -1: its request ends at commit, any id will do until then.
int32_t Workspace::resolved(int32_t token) const {
  if (token >= 0) return token;
  const int64_t row = (-1 - token) % kMaxLogitRows, draft = (-1 - token) / kMaxLogitRows;
  if (row >= int64_t(previous_.size()) || draft > max_drafts_) return 0;
  return std::max(draft ? drafts_[size_t(row * max_drafts_ + draft - 1)] : previous_[size_t(row)], 0);
}

void Workspace::resolve_references(StepSize size) {
  for (int64_t t = 0; t < size.tokens; t++) arrays.tokens[t] = resolved(arrays.tokens[t]);
  const int32_t n = size.logits ? arrays.path_begin[size.logits] : 0;
  paths_.resize(size_t(n));
  for (int32_t i = 0; i < n; i++) paths_[size_t(i)] = resolved(arrays.path[i]);
}

RowCount Workspace::rows_of(const Record& r) const {
  if (r.tail) return {0, 1};
  return {RowsOf(r.rows_of) == RowsOf::pairs ? spec.top_k : 1, 0};
}

const Buffer& Workspace::buffer_of(int32_t id) const { return at(spec.buffers, id, "buffer"); }

Rows Workspace::view(int32_t id) const {
  const Buffer& b = buffer_of(id);
  Rows rows{DType(b.dtype), b.block, arena_ + b.offset, b.columns, nullptr, nullptr};
  if (rows.dtype == DType::q8) {
    const auto aligned = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
    uint8_t* scales = arena_ + b.offset + aligned(int64_t(b.max_rows) * b.columns);
    rows.scales = reinterpret_cast<float*>(scales);
    rows.sums = reinterpret_cast<int32_t*>(scales + aligned(int64_t(b.max_rows) * (b.columns / b.block) * 4));
  }
  return rows;
}

float* Workspace::floats(int32_t id) const { return reinterpret_cast<float*>(arena_ + buffer_of(id).offset); }
int32_t* Workspace::ints(int32_t id) const {
  return reinterpret_cast<int32_t*>(arena_ + buffer_of(id).offset);
}
const Weight& Workspace::weight(int32_t id) const { return at(spec.weights, id, "weight"); }
const float* Workspace::vector(int32_t id) const {
  return id < 0 ? nullptr : reinterpret_cast<const float*>(weight(id).data);
}
const KvLayer& Workspace::kv(int32_t layer) const { return at(spec.kv, layer, "KV layer"); }
const StepRows& Workspace::rows(int32_t layer) const {
  return at(step_rows_, at(spec.kv_groups, layer, "KV layer"), "KV group");
}
const StepRows& Workspace::rows_by_token(int32_t layer) const {
  return at(token_rows_, at(spec.kv_groups, layer, "KV layer"), "KV group");
}
const float* Workspace::table(int32_t id) const { return at(spec.tables, id, "table"); }

std::span<const int32_t> Workspace::path(int64_t row) const {
  const int32_t begin = arrays.path_begin[row];
  return {paths_.data() + begin, size_t(arrays.path_begin[row + 1] - begin)};
}

}  // namespace kvasir
