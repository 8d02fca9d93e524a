// How attention is cut into items: by query tokens and KV head, and, where one sequence is long and there are
// threads to share it, by segments of its context as well. Rows that share blocks have items in common. The
// kernels give the same bits either way.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "program/aligned.h"
#include "program/shared_items.h"
#include "program/shared_rows.h"
#include "program/spec.h"

namespace kvasir {

class AttentionCut {
 public:
  // Query tokens of one sequence.
  struct Chunk {
    int32_t seq, t0, t1;
    int32_t length;    // positions that they see
    int32_t segments;  // that are items of their own; 0: all positions are one item
    int64_t split;     // index of the first token among those split
    int64_t work() const { return int64_t(t1 - t0) * length; }
  };
  // What one item computes, for one KV head.
  struct Part {
    int32_t chunk, segment;
  };

  AttentionCut(const ProgramSpec& spec, const StepArrays& arrays, int n_threads);
  // Once a step.
  void begin(StepSize size);

  const SharedRows& shared_rows() const { return shared_rows_; }
  // Of layers with so many KV heads; they come before the parts.
  const SharedItems& shared_items(int32_t n_kv_heads) const;
  int64_t n_parts() const { return int64_t(parts_.size()); }
  const Part& part(int64_t i) const { return parts_[size_t(i)]; }
  const Chunk& chunk(const Part& part) const { return chunks_[size_t(part.chunk)]; }
  int32_t most_tokens() const;  // of a chunk
  // Where the segments of a chunk's KV head lie, each of `size` floats.
  float* partial(const Chunk& chunk, int32_t kv_head, int64_t size) const;
  // What was begun and not ended is not gone on with.
  void forget();
  // One more segment has been computed: was it the last?
  bool is_last(const Chunk& chunk, int32_t kv_head);

 private:
  int32_t tokens_at(int32_t position, StepSize size) const;
  int64_t add_chunks(StepSize size);
  int64_t token_partial() const;
  void add_shared_items(const ProgramSpec& spec);

  const StepArrays arrays_;
  const int64_t n_threads_, group_max_, head_dim_max_, kv_heads_min_;
  SharedRows shared_rows_;
  std::vector<SharedItems> shared_items_;  // by number of KV heads
  int64_t kv_heads_max_ = 1;
  int64_t segments_ = 0, split_tokens_ = 0;  // of the largest context; tokens whose segments may be items
  AlignedFloats partial_;
  std::vector<std::atomic<int32_t>> done_;  // [split tokens, KV heads] segments computed
  std::vector<Chunk> chunks_;
  std::vector<Part> parts_;
};

}  // namespace kvasir
