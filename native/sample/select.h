// Where a cumulative weight over tokens in the order (logit descending, id ascending) reaches a target.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "sample/rows.h"

namespace kvasir {

// Scratch of one thread. Weights are integers, so no order of summing can change a result and nothing is
// sorted: three rounds of 11, 11 and 10 bits narrow the logit down, ties go by id. Time is bounded for any
// row.
class Selector {
 public:
  // Border that keeps the k first tokens above -inf, or all of them when there are fewer.
  Border top_k(const float* x, int64_t n, const std::vector<float>& maxima, int32_t k);
  // Border of the smallest prefix whose probability reaches top_p of all that `draw` keeps.
  Border top_p(const float* x, int64_t n, const std::vector<float>& maxima, const Draw& draw, float top_p);
  // The same over `scores` [n] in the place of logits, by the probabilities of `x`; `maxima` are those of the
  // scores.
  Border typical(const float* scores, const float* x, int64_t n, const std::vector<float>& maxima,
                 const Draw& draw, float share);
  // Ids within `border`, in order.
  std::vector<int32_t> list(const float* x, int64_t n, const std::vector<float>& maxima, Border border) const;

 private:
  struct Candidate {
    uint32_t key;
    int32_t id;
    uint64_t weight;
  };
  // weigh(start, weights): weights of 64 tokens. Tokens below `floor` weigh nothing.
  template <class Weigh, class Target>
  Border reach(const float* x, int64_t n, const std::vector<float>& maxima, float floor, Weigh weigh,
               Target target);
  // The bin in which the running weight `before` reaches `needed`, bins taken from the highest; updates
  // `before`.
  uint32_t bin_reaching(uint64_t needed, uint64_t& before) const;
  void narrow(int shift, uint32_t bits, uint64_t needed, uint64_t& before);

  std::vector<uint64_t> bins_;
  std::vector<Candidate> candidates_;
  std::vector<float> order_;
};

}  // namespace kvasir
