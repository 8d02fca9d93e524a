#include "program/attention_cut.h"

#include <algorithm>
#include <stdexcept>

#include "program/share.h"

namespace kvasir {
namespace {

constexpr int32_t kTokens = 32;  // query tokens of one item
// From here on twice as many, where few heads share K and V: prefill at 1,536 is 2 % faster, at 7,488 3 %; at
// 0 it would be 1 % slower (AMD Zen 5, two threads).
constexpr int32_t kLongContext = 1024;
constexpr int32_t kFewHeads = 3;
// Rows times KV heads for each thread from which on these alone share a long context evenly; with fewer, rows
// are computed apart, by segments.
constexpr int64_t kHeadsPerThread = 3;

int64_t fewest_kv_heads(const ProgramSpec& spec) {
  int32_t n = INT32_MAX;
  for (const KvLayer& kv : spec.kv)
    if (!kv.is_state()) n = std::min(n, kv.n_kv_heads);
  return n;
}

}  // namespace

// Memory for the segments of as many tokens as can be worth it: with more of them in a step, or one thread,
// whole items share the work well enough.
AttentionCut::AttentionCut(const ProgramSpec& spec, const StepArrays& arrays, int n_threads)
    : arrays_(arrays),
      n_threads_(n_threads),
      group_max_(spec.group_max),
      head_dim_max_(spec.head_dim_max),
      kv_heads_min_(fewest_kv_heads(spec)),
      shared_rows_(spec, arrays, ceil_div(kHeadsPerThread * n_threads, kv_heads_min_)) {
  for (const KvLayer& kv : spec.kv) kv_heads_max_ = std::max<int64_t>(kv_heads_max_, kv.n_kv_heads);
  add_shared_items(spec);
  const int64_t context = spec.kv.empty() ? 0 : arrays.max_blocks * spec.kv[0].block_size;
  segments_ = ceil_div(context, kAttnSplit);
  if (n_threads_ > 1 && segments_ > 1) split_tokens_ = ceil_div(kItemsPerThread * n_threads_, kv_heads_min_);
  partial_ = AlignedFloats(split_tokens_ * token_partial());
  done_ = std::vector<std::atomic<int32_t>>(size_t(split_tokens_ * kv_heads_max_));
  chunks_.reserve(size_t(spec.max_tokens));
  parts_.reserve(size_t(spec.max_tokens + split_tokens_ * segments_));
}

void AttentionCut::add_shared_items(const ProgramSpec& spec) {
  for (const KvLayer& kv : spec.kv) {
    const auto is_its = [&](const SharedItems& items) { return items.n_kv_heads() == kv.n_kv_heads; };
    if (kv.is_state() || std::any_of(shared_items_.begin(), shared_items_.end(), is_its)) continue;
    shared_items_.emplace_back(kv.n_kv_heads, n_threads_);
  }
}

const SharedItems& AttentionCut::shared_items(int32_t n_kv_heads) const {
  for (const SharedItems& items : shared_items_)
    if (items.n_kv_heads() == n_kv_heads) return items;
  throw std::invalid_argument("attention of a layer without KV heads");
}

// Floats for all segments of one token, all heads.
int64_t AttentionCut::token_partial() const {
  return segments_ * kv_heads_max_ * attention_partial(1, group_max_, head_dim_max_);
}

float* AttentionCut::partial(const Chunk& chunk, int32_t kv_head, int64_t size) const {
  return partial_.data() + chunk.split * token_partial() + kv_head * chunk.segments * size;
}

void AttentionCut::forget() {
  for (std::atomic<int32_t>& done : done_) done.store(0, std::memory_order_relaxed);
}

bool AttentionCut::is_last(const Chunk& chunk, int32_t kv_head) {
  std::atomic<int32_t>& done = done_[size_t(chunk.split * kv_heads_max_ + kv_head)];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < chunk.segments) return false;
  done.store(0, std::memory_order_relaxed);
  return true;
}

int32_t AttentionCut::most_tokens() const { return group_max_ <= kFewHeads ? 2 * kTokens : kTokens; }

// Each item brings its keys and values into the cache and packs them, for as many query tokens as leave items
// enough to share. `position` is that of its first token.
int32_t AttentionCut::tokens_at(int32_t position, StepSize size) const {
  const bool many = size.tokens * kv_heads_min_ >= kTokens * kItemsPerThread * n_threads_;
  if (!many) return kTokens / 2;
  return position >= kLongContext ? most_tokens() : kTokens;
}

// Returns their work.
int64_t AttentionCut::add_chunks(StepSize size) {
  const StepArrays& a = arrays_;
  int64_t work = 0;
  for (int64_t s = 0; s < size.seqs; s++) {
    if (shared_rows_.has(s)) {
      work += a.pos[a.seq_begin[s]] + 1;
      continue;
    }
    for (int32_t t = a.seq_begin[s], end = 0; t < a.seq_begin[s + 1]; t = end) {
      end = std::min<int32_t>(t + tokens_at(a.pos[t], size), a.seq_begin[s + 1]);
      int32_t length = *std::max_element(a.pos + t, a.pos + end) + 1;
      if (a.ends) length = std::max(length, *std::max_element(a.ends + t, a.ends + end));
      chunks_.push_back({int32_t(s), t, end, length, 0, 0});
      work += chunks_.back().work();
    }
  }
  return work;
}

void AttentionCut::begin(StepSize size) {
  chunks_.clear();
  parts_.clear();
  shared_rows_.begin(size);
  for (SharedItems& items : shared_items_) items.begin(shared_rows_, arrays_.pos);
  const int64_t work = add_chunks(size);
  int64_t used = 0;
  for (size_t c = 0; c < chunks_.size(); c++) {
    Chunk& chunk = chunks_[c];
    const int64_t segments = ceil_div(chunk.length, kAttnSplit), tokens = chunk.t1 - chunk.t0;
    // one head of it is more than an item's fair share
    const bool large = chunk.work() * kItemsPerThread * n_threads_ > work * kv_heads_min_;
    if (segments > 1 && large && used + tokens <= split_tokens_) {
      chunk.segments = int32_t(segments);
      chunk.split = used;
      used += tokens;
    }
    for (int32_t g = 0; g < std::max(chunk.segments, 1); g++) parts_.push_back({int32_t(c), g});
  }
  std::reverse(parts_.begin(), parts_.end());  // the last tokens of a prompt see most: they go first
}

}  // namespace kvasir
