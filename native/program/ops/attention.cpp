#include "program/ops/attention.h"

#include <algorithm>
#include <stdexcept>

#include "program/share.h"

namespace kvasir {

Attention::Attention(const Record& r, Workspace& w)
    : workspace(w), cut(w.cut), args{}, out(w.view(r.out[0])) {
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
}

void Attention::run(const Extent&, int64_t index, int thread) const {
  const int64_t n_kv = args.kv->n_kv_heads;
  const AttentionCut::Part& part = cut.part(index / n_kv);
  const AttentionCut::Chunk& chunk = cut.chunk(part);
  // where the window is no longer than a segment, most parts would see nothing: the last one does all
  const bool whole = chunk.segments == 0 || (args.window > 0 && args.window <= kAttnSplit);
  if (whole && part.segment + 1 < chunk.segments) return;
  AttentionArgs item = args;
  item.seq = chunk.seq;
  item.t0 = chunk.t0;
  item.t1 = chunk.t1;
  item.kv_head = int32_t(index % n_kv);
  item.scratch = workspace.scratch(thread);
  item.coming = coming(index);
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

// The first tile of the item that the thread will claim after this one.
ComingKv Attention::coming(int64_t index) const {
  const int64_t n_kv = args.kv->n_kv_heads, total = cut.n_parts() * n_kv, next = index + 1;
  if (next == ItemRange::around(index, workspace.n_threads, total).end) return {};
  const AttentionCut::Part& part = cut.part(next / n_kv);
  const AttentionCut::Chunk& chunk = cut.chunk(part);
  const int64_t begin = chunk.segments ? part.segment * kAttnSplit : 0;
  const int64_t pos = args.rows->pos[chunk.t0], first = pos - args.window + 1;
  const int64_t visible = args.chunked ? pos - pos % args.window : args.window > 0 ? first : 0;
  const int64_t low = std::max(begin, visible);
  const int64_t high = std::min<int64_t>(low / kAttnTile * kAttnTile + kAttnTile, chunk.length);
  return {chunk.seq, low, high, int32_t(next % n_kv)};
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
