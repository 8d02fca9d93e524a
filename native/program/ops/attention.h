// Attention of a layer, as AttentionCut cuts it: an item is a part of a sequence against one KV head.
#pragma once
#include "program/workspace.h"

namespace kvasir {

// in: q; out: f32, or rows of any type; weight: sinks or none; layer, n_heads, window, chunked, has_ends,
// scale, softcap.
struct Attention {
  static constexpr const char* kName = "attention";
  Attention(const Record& r, Workspace& w);
  int64_t items(const Extent&) const { return cut.n_parts() * args.kv->n_kv_heads; }
  void run(const Extent& e, int64_t item, int thread) const;

  const Workspace& workspace;
  AttentionCut& cut;
  AttentionArgs args;  // of all items; the output is where `out` begins
  Rows out;

 private:
  ComingKv coming(int64_t item) const;
  bool attend_segment(const AttentionCut::Chunk& chunk, int64_t segment, AttentionArgs& item) const;
};

}  // namespace kvasir
