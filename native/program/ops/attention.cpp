#include "program/ops/attention.h"

#include <algorithm>
#include <stdexcept>

#include "program/share.h"

namespace kvasir {

Attention::Attention(const Record& r, Workspace& w)
    : workspace(w),
      cut(w.cut),
      shared(w.cut.shared_items(w.kv(r.layer).n_kv_heads)),
      group(w.spec.kv_groups.at(size_t(r.layer))),
      args{},
      out(w.view(r.out[0])) {
  args.kv = &w.kv(r.layer);
  args.rows = &w.rows(r.layer);
  args.q = w.floats(r.in[0]);
  args.ldq = w.columns(r.in[0]);
  args.n_heads = r.n_heads;
  args.window = r.window;
  args.chunked = r.chunked != 0;
  if (args.chunked && args.window < 1) throw std::invalid_argument("attention to chunks of no size");
  args.ends = r.has_ends ? w.arrays.ends : nullptr;
  args.scale = r.scale;
  args.softcap = r.softcap;
  args.sinks = w.vector(r.weight[0]);
  args.slopes = r.leans ? w.table(r.table) : nullptr;
}

void Attention::run(const Extent&, int64_t index, int thread) const {
  AttentionArgs item = args;
  item.scratch = workspace.scratch(thread);
  item.coming = coming(index);
  if (index < shared.size()) return run_shared(shared[index], item, thread);
  run_part(index - shared.size(), item, thread);
}

// Rows lie anywhere in the output.
void Attention::run_shared(const SharedItems::Item& of, AttentionArgs& item, int thread) const {
  if (of.begin == of.end) return;
  const SharedRows& rows = cut.shared_rows();
  item.tokens = rows.tokens() + of.begin;
  item.seq = args.rows->seq[item.tokens[0]];
  item.t1 = of.end - of.begin;
  item.shared = rows.shared(of.run, group);
  item.kv_head = of.kv_head;
  const int64_t columns = args.n_heads / args.kv->n_kv_heads * value_dim(*args.kv);
  item.ldo = columns;
  item.out = workspace.output(thread);
  workspace.kernels.attention(item);
  for (int64_t n = 0; n < item.t1; n++) {
    const int64_t t = item.tokens[n];
    workspace.cast({item.out + n * columns, columns, t, t + 1, item.kv_head * columns}, out);
  }
}

void Attention::run_part(int64_t index, AttentionArgs& item, int thread) const {
  const int64_t n_kv = args.kv->n_kv_heads;
  const AttentionCut::Part& part = cut.part(index / n_kv);
  const AttentionCut::Chunk& chunk = cut.chunk(part);
  // where the window is no longer than a segment, most parts would see nothing: the last one does all
  const bool whole = chunk.segments == 0 || (args.window > 0 && args.window <= kAttnSplit);
  if (whole && part.segment + 1 < chunk.segments) return;
  item.seq = chunk.seq;
  item.t0 = chunk.t0;
  item.t1 = chunk.t1;
  item.kv_head = int32_t(index % n_kv);
  const int64_t columns = args.n_heads / n_kv * value_dim(*args.kv), column = item.kv_head * columns;
  const bool casts = out.dtype != DType::f32;
  item.ldo = casts ? columns : out.ld;
  item.out = casts ? workspace.output(thread) : static_cast<float*>(out.data) + item.t0 * out.ld + column;
  if (whole) {
    workspace.kernels.attention(item);
  } else if (!attend_segment(chunk, part.segment, item)) {
    return;
  }
  if (casts) workspace.cast({item.out, columns, item.t0, item.t1, column}, out);
}

int64_t Attention::visible_from(int64_t token) const {
  const int64_t pos = args.rows->pos[token], first = pos - args.window + 1;
  return args.chunked ? pos - pos % args.window : args.window > 0 ? std::max<int64_t>(first, 0) : 0;
}

// Of an item, or none.
ComingKv Attention::first_tile(int64_t index) const {
  const auto tile = [](int64_t seq, int64_t low, int64_t length, int64_t kv_head) {
    const int64_t high = std::min<int64_t>(low / kAttnTile * kAttnTile + kAttnTile, length);
    return ComingKv{seq, low, high, int32_t(kv_head)};
  };
  if (index < shared.size()) {
    const SharedItems::Item& item = shared[index];
    if (item.begin == item.end) return {};
    const int32_t t = cut.shared_rows().tokens()[item.begin];
    return tile(args.rows->seq[t], visible_from(t), args.rows->pos[t] + 1, item.kv_head);
  }
  const int64_t n_kv = args.kv->n_kv_heads, at = index - shared.size();
  const AttentionCut::Part& part = cut.part(at / n_kv);
  const AttentionCut::Chunk& chunk = cut.chunk(part);
  const int64_t begin = chunk.segments ? part.segment * kAttnSplit : 0;
  return tile(chunk.seq, std::max(begin, visible_from(chunk.t0)), chunk.length, at % n_kv);
}

// The first tile of the item that the thread will claim after this one.
ComingKv Attention::coming(int64_t index) const {
  const int64_t total = shared.size() + cut.n_parts() * args.kv->n_kv_heads, next = index + 1;
  if (next == ItemRange::around(index, workspace.n_threads, total).end) return {};
  return first_tile(next);
}

// The thread that finishes the last segment of a head combines all of them: true.
bool Attention::attend_segment(const AttentionCut::Chunk& chunk, int64_t segment, AttentionArgs& item) const {
  const int64_t group = args.n_heads / args.kv->n_kv_heads;
  const int64_t size = attention_partial(chunk.t1 - chunk.t0, group, args.kv->head_dim);
  item.partial = cut.partial(chunk, item.kv_head, size);
  item.segment = segment;
  workspace.kernels.attention(item);
  if (!cut.is_last(chunk, item.kv_head)) return false;
  item.segment = chunk.segments;
  workspace.kernels.attention_combine(item);
  return true;
}

}  // namespace kvasir
