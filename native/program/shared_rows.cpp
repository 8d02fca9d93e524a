#include "program/shared_rows.h"

#include <algorithm>
#include <string_view>

#include "program/op.h"

namespace kvasir {
namespace {

// Of layers without a window, whose tables keep their first blocks; else of any that attend.
int32_t widest_group(const ProgramSpec& spec) {
  int32_t group = 0;
  for (const Record& r : spec.records) {
    const std::string_view name = op_name(r.kind);
    const bool attends = name == Attention::kName || name == LatentAttention::kName;
    if (!attends || r.layer < 0 || size_t(r.layer) >= spec.kv_groups.size()) continue;
    group = spec.kv_groups[size_t(r.layer)];
    if (r.window == 0) break;
  }
  return group;
}

}  // namespace

SharedRows::SharedRows(const ProgramSpec& spec, const StepArrays& arrays, int64_t least_when_long)
    : arrays_(arrays), least_when_long_(least_when_long), group_(widest_group(spec)) {
  for (const KvLayer& kv : spec.kv)
    if (!kv.is_state()) block_size_ = kv.block_size;
  for (const int32_t group : spec.kv_groups) n_groups_ = std::max(n_groups_, group + 1);
  is_in_run_.resize(size_t(arrays.max_seqs));
  tokens_.reserve(size_t(arrays.max_seqs));
  alike_.reserve(size_t(arrays.max_seqs));
}

const int32_t* SharedRows::table(int32_t token, int32_t group) const {
  return arrays_.tables + (group * arrays_.max_seqs + arrays_.seq[token]) * arrays_.max_blocks;
}

int64_t SharedRows::common_blocks(int32_t a, int32_t b, int32_t group) const {
  const int32_t *first = table(a, group), *other = table(b, group);
  return std::mismatch(first, first + std::min(n_blocks(a), n_blocks(b)), other).first - first;
}

// Those of one token, neighbours having most in common. Where no two have the same first block, that is one
// comparison of numbers for each pair that sorting looks at.
void SharedRows::sort_rows(StepSize size) {
  tokens_.clear();
  for (int64_t s = 0; s < size.seqs; s++) {
    const int32_t t = arrays_.seq_begin[s];
    const bool single = arrays_.seq_begin[s + 1] == t + 1 && !arrays_.seq_tree[s];
    if (single && table(t, group_)[0] >= 0) tokens_.push_back(t);
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    const int32_t *x = table(a, group_), *y = table(b, group_);
    return std::lexicographical_compare(x, x + n_blocks(a), y, y + n_blocks(b));
  });
  alike_.assign(tokens_.size(), 0);
  for (size_t i = 1; i < tokens_.size(); i++)
    alike_[i] = int32_t(common_blocks(tokens_[i - 1], tokens_[i], group_) * block_size_ / kAttnTile);
}

bool SharedRows::is_worth(const Run& run) const {
  const auto length = [&](int32_t t) { return arrays_.pos[t] + 1; };
  int32_t longest = 0;
  for (int32_t i = run.begin; i < run.end; i++) longest = std::max(longest, length(tokens_[size_t(i)]));
  return longest <= kAttnSplit || run.rows() >= least_when_long_;
}

// Makes one run of the places [begin, end), or those of what is more alike, whichever saves more tiles; these
// are returned.
int64_t SharedRows::divide(int32_t begin, int32_t end) {
  if (end - begin < 2) return 0;
  const int32_t least = *std::min_element(alike_.begin() + begin + 1, alike_.begin() + end);
  const int64_t together = int64_t(least) * (end - begin - 1);
  const size_t before = runs_.size();
  int64_t apart = 0;
  for (int32_t i = begin, next = 0; i < end; i = next) {
    for (next = i + 1; next < end && alike_[size_t(next)] > least;) next++;
    apart += divide(i, next);
  }
  const Run run = {begin, end};
  if (together <= apart || !is_worth(run)) return apart;
  runs_.resize(before);
  runs_.push_back(run);
  return together;
}

// Rows that have a number of blocks in common one by one have it all together.
void SharedRows::add_shared(const Run& run) {
  for (int32_t group = 0; group < n_groups_; group++) {
    int64_t least = arrays_.max_blocks;
    for (int32_t i = run.begin + 1; i < run.end; i++)
      least = std::min(least, common_blocks(tokens_[size_t(i - 1)], tokens_[size_t(i)], group));
    shared_.push_back(least * block_size_);
  }
}

void SharedRows::begin(StepSize size) {
  runs_.clear();
  shared_.clear();
  std::fill(is_in_run_.begin(), is_in_run_.end(), 0);
  if (block_size_ == 0 || size.seqs < 2) return;
  sort_rows(size);
  divide(0, int32_t(tokens_.size()));
  for (const Run& run : runs_) {
    add_shared(run);
    for (int32_t i = run.begin; i < run.end; i++) is_in_run_[size_t(arrays_.seq[tokens_[size_t(i)]])] = 1;
  }
}

}  // namespace kvasir
