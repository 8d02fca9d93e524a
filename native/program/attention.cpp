// How attention is cut into items: by query tokens and KV head, and, where one sequence is long and there are
// threads to share it, by segments of its context as well. The kernels give the same bits either way.
#include <algorithm>

#include "program/program.h"

namespace kvasir {

// Memory for the segments of as many tokens as can be worth it: with more of them in a step, or one thread,
// whole items share the work well enough.
void Program::plan_splits() {
  kv_heads_max_ = 1;
  kv_heads_min_ = INT32_MAX;
  for (const KvLayer& kv : spec_.kv) {
    kv_heads_max_ = std::max<int64_t>(kv_heads_max_, kv.n_kv_heads);
    kv_heads_min_ = std::min<int64_t>(kv_heads_min_, kv.n_kv_heads);
  }
  const int64_t context = spec_.kv.empty() ? 0 : a_.max_blocks * spec_.kv[0].block_size;
  split_segments_ = ceil_div(context, kAttnSplit);
  if (pool_.size() > 1 && split_segments_ > 1)
    split_tokens_ = ceil_div(kItemsPerThread * pool_.size(), kv_heads_min_);
  partial_memory_.resize(size_t(split_tokens_ * token_partial() + 16));
  const auto address = reinterpret_cast<uintptr_t>(partial_memory_.data());
  partial_ = reinterpret_cast<float*>((address + 63) / 64 * 64);
  split_done_ = std::vector<std::atomic<int32_t>>(size_t(split_tokens_ * kv_heads_max_));
  chunks_.reserve(size_t(spec_.max_tokens));
  parts_.reserve(size_t(spec_.max_tokens + split_tokens_ * split_segments_));
}

// Floats for all segments of one token, all heads.
int64_t Program::token_partial() const {
  return split_segments_ * kv_heads_max_ * attention_partial(1, spec_.group_max, spec_.head_dim_max);
}

int32_t Program::most_attention_tokens() const {
  return spec_.group_max <= kFewHeads ? 2 * kAttentionTokens : kAttentionTokens;
}

// Each item brings its keys and values into the cache and packs them, for as many query tokens as leave items
// enough to share. `position` is that of its first token.
int32_t Program::attention_tokens(int32_t position) const {
  const bool many = size_.tokens * kv_heads_min_ >= kAttentionTokens * kItemsPerThread * pool_.size();
  if (!many) return kAttentionTokens / 2;
  return position >= kLongContext ? most_attention_tokens() : kAttentionTokens;
}

void Program::cut_attention() {
  chunks_.clear();
  parts_.clear();
  int64_t work = 0;
  for (int64_t s = 0; s < size_.seqs; s++)
    for (int32_t t = a_.seq_begin[s], end = 0; t < a_.seq_begin[s + 1]; t = end) {
      end = std::min<int32_t>(t + attention_tokens(a_.pos[t]), a_.seq_begin[s + 1]);
      const int32_t length = *std::max_element(a_.pos + t, a_.pos + end) + 1;
      chunks_.push_back({int32_t(s), t, end, length, 0, 0});
      work += chunks_.back().work();
    }
  int64_t used = 0;
  for (size_t c = 0; c < chunks_.size(); c++) {
    Chunk& chunk = chunks_[c];
    const int64_t segments = ceil_div(chunk.length, kAttnSplit), tokens = chunk.t1 - chunk.t0;
    // one head of it is more than an item's fair share
    const bool large = chunk.work() * kItemsPerThread * pool_.size() > work * kv_heads_min_;
    if (segments > 1 && large && used + tokens <= split_tokens_) {
      chunk.segments = int32_t(segments);
      chunk.split = used;
      used += tokens;
    }
    for (int32_t g = 0; g < std::max(chunk.segments, 1); g++) parts_.push_back({int32_t(c), g});
  }
  std::reverse(parts_.begin(), parts_.end());  // the last tokens of a prompt see most: they go first
}

void Program::attention(const Record& r, int64_t item, int thread) {
  AttentionArgs args{};
  args.kv = &spec_.kv[size_t(r.i[3])];
  const int64_t n_kv = args.kv->n_kv_heads;
  const Part& part = parts_[size_t(item / n_kv)];
  const Chunk& chunk = chunks_[size_t(part.chunk)];
  // where the window is no longer than a segment, most parts would see nothing: the last one does all
  const bool whole = chunk.segments == 0 || (r.i[5] > 0 && r.i[5] <= kAttnSplit);
  if (whole && part.segment + 1 < chunk.segments) return;
  args.q = floats(r.in[0]);
  args.ldq = spec_.buffers[size_t(r.in[0])].columns;
  args.n_heads = r.i[4];
  args.window = r.i[5];
  args.scale = r.f[0];
  args.softcap = r.f[1];
  args.rows = &step_rows_[size_t(spec_.kv_groups[size_t(r.i[3])])];
  args.seq = chunk.seq;
  args.t0 = chunk.t0;
  args.t1 = chunk.t1;
  args.kv_head = int32_t(item % n_kv);
  args.sinks = vector(r.weight[0]);
  args.scratch = scratch_[size_t(thread)];
  args.coming = coming_kv(r, item);
  const Buffer& out = spec_.buffers[size_t(r.out[0])];
  const int64_t columns = args.n_heads / n_kv * args.kv->head_dim, column = args.kv_head * columns;
  const bool casts = DType(out.dtype) != DType::f32;
  args.ldo = casts ? columns : out.columns;
  args.out = casts ? args.scratch + output_at_ : floats(r.out[0]) + args.t0 * out.columns + column;
  if (whole) {
    kernels_.attention(args);
  } else if (!attend_segment(chunk, part.segment, args)) {
    return;
  }
  if (casts) cast_item(args.out, columns, r.out[0], args.t0, args.t1, column);
}

// The first tile of the item that the thread will claim after this one.
ComingKv Program::coming_kv(const Record& r, int64_t item) const {
  const int64_t n_kv = spec_.kv[size_t(r.i[3])].n_kv_heads, total = int64_t(parts_.size()) * n_kv;
  const int64_t next = item + 1;
  if (next == ItemRange::around(item, pool_.size(), total).end) return {};
  const Part& part = parts_[size_t(next / n_kv)];
  const Chunk& chunk = chunks_[size_t(part.chunk)];
  const int64_t begin = chunk.segments ? part.segment * kAttnSplit : 0;
  const int64_t visible = r.i[5] > 0 ? a_.pos[chunk.t0] - r.i[5] + 1 : 0;
  const int64_t low = std::max(begin, visible);
  const int64_t high = std::min<int64_t>(low / kAttnTile * kAttnTile + kAttnTile, chunk.length);
  return {chunk.seq, low, high, int32_t(next % n_kv)};
}

// The thread that finishes the last segment of a head combines all of them: true.
bool Program::attend_segment(const Chunk& chunk, int64_t segment, AttentionArgs args) {
  const int64_t size =
      attention_partial(chunk.t1 - chunk.t0, args.n_heads / args.kv->n_kv_heads, args.kv->head_dim);
  args.partial = partial_ + chunk.split * token_partial() + args.kv_head * chunk.segments * size;
  args.segment = segment;
  kernels_.attention(args);
  std::atomic<int32_t>& done = split_done_[size_t(chunk.split * kv_heads_max_ + args.kv_head)];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < chunk.segments) return false;
  done.store(0, std::memory_order_relaxed);
  args.segment = chunk.segments;
  kernels_.attention_combine(args);
  return true;
}

}  // namespace kvasir
