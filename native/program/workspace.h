// What the ops of a program share: kernels, memory by the ids of records, and what a step is read from.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/variants.h"
#include "program/aligned.h"
#include "program/attention_cut.h"
#include "program/spec.h"
#include "sample/masks.h"
#include "sample/sampler.h"

namespace kvasir {

// The rows that items compute: all tokens of a step, and one tile of its logit rows.
struct Extent {
  int64_t tokens = 0, seqs = 0;
  int64_t logit_begin = 0, logits = 0;
};

// How many rows an op has: so many for each token, or for each logit row.
struct RowCount {
  int64_t per_token, per_logit;
  int64_t operator()(const Extent& e) const { return e.tokens * per_token + e.logits * per_logit; }
  bool operator==(const RowCount&) const = default;
};

// Ops point into it: it stays where it is. Ids that no record may have throw std::invalid_argument.
class Workspace {
 public:
  Workspace(int n_threads, const Kernels& kernels, const Sampler& sampler, ProgramSpec spec, uint8_t* arena,
            StepArrays arrays);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // The step that runs next: its rows, its references resolved, its attention cut. logits: [R, vocab] or
  // null.
  void begin(StepSize size, const StepMasks& masks, float* logits);
  // What the step drew is what the next one refers to.
  void end(StepSize size);
  // References may name so many drafts of a logit row.
  void keep_drafts(int64_t n);
  void set_draft(int64_t logit_row, int64_t draft, int32_t token);
  // What linears of a weight are from now on, for a class of rows. Throws std::invalid_argument where
  // variants_for() does not have it.
  void choose(int32_t weight, int row_class, int variant);
  const Variant& variant(int32_t weight, int64_t rows) const {
    return variants()[choices_[size_t(weight)][size_t(row_class(rows))]];
  }

  RowCount rows_of(const Record& r) const;
  int32_t columns(int32_t buffer) const { return buffer_of(buffer).columns; }
  Rows view(int32_t buffer) const;
  float* floats(int32_t buffer) const;
  int32_t* ints(int32_t buffer) const;
  const Weight& weight(int32_t id) const;
  const float* vector(int32_t weight) const;  // null where absent
  const KvLayer& kv(int32_t layer) const;
  const StepRows& rows(int32_t layer) const;  // with the tables of the layer's group
  // The same, but each token stands at its own number: tables of rope have a row for each.
  const StepRows& rows_by_token(int32_t layer) const;
  const float* table(int32_t id) const;
  float* scratch(int thread) const { return scratch_[size_t(thread)].data(); }
  float* output(int thread) const { return scratch(thread) + output_at_; }
  std::span<const int32_t> path(int64_t logit_row) const;  // references resolved
  // Floats that an item computed for columns [column, ...) of rows [m0, m1).
  struct Computed {
    const float* x;
    int64_t ldx, m0, m1, column;
  };
  // They become rows of another type while they are in a cache.
  void cast(const Computed& c, const Rows& out) const {
    kernels.cast(
        {c.x, c.ldx, int32_t(std::min(c.ldx, out.ld - c.column)), out, c.m0, c.m1, int32_t(c.column)});
  }

  const int n_threads;
  const Kernels kernels;
  const Sampler& sampler;
  const ProgramSpec spec;
  const StepArrays arrays;
  AttentionCut cut;
  // of the running step
  StepMasks masks;
  float* logits_out = nullptr;

 private:
  const Buffer& buffer_of(int32_t id) const;
  void plan_scratch();
  void resolve_references(StepSize size);
  int32_t resolved(int32_t token) const;

  uint8_t* arena_;
  std::vector<std::array<uint8_t, kRowClasses>> choices_;  // by weight
  int64_t output_at_ = 0;               // of a scratch: floats that an item computes before it casts them
  std::vector<AlignedFloats> scratch_;  // per thread
  std::vector<int32_t> previous_;       // tokens drawn by the previous step
  int64_t max_drafts_ = 0;
  std::vector<int32_t> drafts_;      // [R, max_drafts_] tokens drafted behind them
  std::vector<int32_t> paths_;       // paths with references resolved
  std::vector<StepRows> step_rows_;  // per KV group: they differ in the tables alone
  std::vector<int32_t> numbers_;     // of tokens
  std::vector<StepRows> token_rows_;
};

}  // namespace kvasir
