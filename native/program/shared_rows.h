// Rows of a step whose tables begin with the same blocks, as branches of a fork and chats with one system
// prompt have them: attention brings these blocks into the cache once for all of them.
#pragma once
#include <cstdint>
#include <vector>

#include "program/spec.h"

namespace kvasir {

class SharedRows {
 public:
  // Rows of one token each: places [begin, end) of tokens().
  struct Run {
    int32_t begin, end;
    int32_t rows() const { return end - begin; }
  };

  // least_when_long: rows of a run of which one has more than a segment of context.
  SharedRows(const ProgramSpec& spec, const StepArrays& arrays, int64_t least_when_long);
  // Once a step.
  void begin(StepSize size);

  int64_t n_runs() const { return int64_t(runs_.size()); }
  const Run& run(int64_t i) const { return runs_[size_t(i)]; }
  const int32_t* tokens() const { return tokens_.data(); }
  bool has(int64_t seq) const { return is_in_run_[size_t(seq)]; }
  // Positions that all rows of a run have in common in the tables of a KV group.
  int64_t shared(int64_t run, int32_t group) const { return shared_[size_t(run * n_groups_ + group)]; }
  // The same in the tables that made it a run.
  int64_t shared(int64_t run) const { return shared(run, group_); }

 private:
  const int32_t* table(int32_t token, int32_t group) const;
  int64_t n_blocks(int32_t token) const { return arrays_.pos[token] / block_size_ + 1; }
  int64_t common_blocks(int32_t a, int32_t b, int32_t group) const;
  void sort_rows(StepSize size);
  int64_t divide(int32_t begin, int32_t end);
  bool is_worth(const Run& run) const;
  void add_shared(const Run& run);

  const StepArrays arrays_;
  const int64_t least_when_long_;
  int64_t block_size_ = 0;
  int32_t n_groups_ = 1, group_ = 0;  // whose tables are compared first
  std::vector<int32_t> tokens_;       // by their tables
  std::vector<int32_t> alike_;        // tiles that a place and the one before it have in common
  std::vector<Run> runs_;
  std::vector<int64_t> shared_;  // [runs, groups]
  std::vector<uint8_t> is_in_run_;
};

}  // namespace kvasir
