// The classical rule of speculation: a token that was drafted from shares q stays with probability
// min(1, p / q), where the target has the shares p; else one is drawn of what p has beyond q (Leviathan et
// al., arXiv 2211.17192; Chen et al., 2302.01318).
#pragma once
#include <cstdint>
#include <memory>

#include "sample/rows.h"

namespace kvasir {

// `out` [n]: the share of each token in all that `draw` keeps; 0 where it is no normal number.
void share_row(const float* x, int64_t n, const Draw& draw, float* out);
// What is drawn of `p` [n] where `drafted` was drawn of `q` [n]. Where rounding leaves nothing of p beyond q,
// the drafted token stays.
int32_t judged(const float* p, const float* q, int64_t n, int32_t drafted, uint64_t seed, int64_t out_index);

// Of each slot the newest drafted tokens, at most `most`, and the shares that they were drawn from. Rows of
// distinct slots may be written at once.
class Proposals {
 public:
  Proposals(int64_t slots, int64_t most, int64_t vocab);
  void forget(int64_t slot);
  void forget(int64_t slot, int64_t out_index) const { index_[place(slot, out_index)] = -1; }
  // [vocab], for who drafts that output, and then says which token it drew of them.
  float* shares(int64_t slot, int64_t out_index) const { return &shares_[place(slot, out_index) * vocab_]; }
  void drew(int64_t slot, int64_t out_index, int32_t token) const;
  // Null: `token` was not drafted from any.
  const float* of(int64_t slot, int64_t out_index, int32_t token) const;

 private:
  size_t place(int64_t slot, int64_t out_index) const { return size_t(slot * most_ + out_index % most_); }

  int64_t most_;
  size_t vocab_;
  std::unique_ptr<float[]> shares_;   // [slots, most, vocab], without a page before it is written
  std::unique_ptr<int64_t[]> index_;  // [slots, most] output index, -1: nothing
  std::unique_ptr<int32_t[]> token_;
};

}  // namespace kvasir
