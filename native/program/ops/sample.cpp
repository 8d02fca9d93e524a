#include "program/ops/sample.h"

#include <algorithm>
#include <cstring>

#include "sample/likeliest.h"

namespace kvasir {

Sample::Sample(const Record& r, const Workspace& w)
    : workspace(w), logits(w.floats(r.in[0])), vocab(w.columns(r.in[0])) {}

Role Sample::role(int64_t row) const {
  const StepArrays& a = workspace.arrays;
  if (a.sampled == nullptr) return {true, -1, int32_t(a.n_siblings)};
  return {false, a.sampled[row] ? a.tokens[a.logit_token[row] + 1] : -1, 0};
}

void Sample::run(const Extent& e, int64_t item, int) const {
  const StepArrays& a = workspace.arrays;
  const int64_t row = e.logit_begin + item;
  float* own = logits + item * vocab;
  if (workspace.spec.hashes) a.hash[row] = hash_row(own, vocab);
  if (workspace.logits_out) std::memcpy(workspace.logits_out + row * vocab, own, size_t(vocab) * 4);
  if (a.candidates) likeliest(own, vocab, a.candidates + row * a.n_candidates, a.n_candidates);
  const Drawn drawn = workspace.sampler.sample(
      a.logit_slot[row], own, a.logit_out_index[row], workspace.path(row), a.logit_target[row],
      maxima ? maxima->of(e, item) : Maxima{}, workspace.masks.of(row), role(row));
  a.drawn[row] = drawn.token;
  a.logprob[row] = drawn.logprob;
  a.rank[row] = drawn.rank;
  const int64_t n = std::min<int64_t>(a.max_top, int64_t(drawn.top.size()));
  a.top_count[row] = int32_t(n);
  for (int64_t j = 0; j < a.n_siblings; j++)
    a.siblings[row * a.n_siblings + j] = j < int64_t(drawn.siblings.size()) ? drawn.siblings[size_t(j)] : -1;
  for (int64_t j = 0; j < n; j++) {
    a.top_ids[row * a.max_top + j] = drawn.top[size_t(j)].first;
    a.top_logprobs[row * a.max_top + j] = drawn.top[size_t(j)].second;
  }
}

}  // namespace kvasir
