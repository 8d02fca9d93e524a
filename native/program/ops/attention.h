// Attention of a layer, as AttentionCut cuts it: an item is a part of a sequence, or rows that share blocks,
// against one KV head.
#pragma once
#include "program/workspace.h"

namespace kvasir {

// in: q; out: f32, or rows of any type; weight: sinks or none; layer, n_heads, window, chunked, has_ends,
// scale, softcap; leans: table, slopes of heads.
struct Attention {
  static constexpr const char* kName = "attention";
  Attention(const Record& r, Workspace& w);
  int64_t items(const Extent&) const { return shared.size() + cut.n_parts() * args.kv->n_kv_heads; }
  void run(const Extent& e, int64_t item, int thread) const;

  const Workspace& workspace;
  AttentionCut& cut;
  const SharedItems& shared;
  int32_t group;       // whose tables find the blocks
  AttentionArgs args;  // of all items; the output is where `out` begins
  Rows out;

 private:
  void run_part(int64_t index, AttentionArgs& item, int thread) const;
  void run_shared(const SharedItems::Item& of, AttentionArgs& item, int thread) const;
  int64_t visible_from(int64_t token) const;
  ComingKv first_tile(int64_t index) const;
  ComingKv coming(int64_t index) const;
  bool attend_segment(const AttentionCut::Chunk& chunk, int64_t segment, AttentionArgs& item) const;
};

}  // namespace kvasir
