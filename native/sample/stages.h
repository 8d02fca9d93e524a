// The stages of a draw one after the other, in any order: what requests with an order of their own or
// a rare stage ask for. The usual order goes without passes over the row between stages (sampler.cpp).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sample/rows.h"
#include "sample/select.h"

namespace kvasir {

// stages.cpp has the others, their names and how each is done.
enum class Stage : int32_t;
constexpr Stage kPenaltyStage{0};

// By the names in kvasir.core.params.SAMPLERS; all of them when there are none. Throws std::invalid_argument.
std::vector<Stage> stages_of(std::span<const std::string> names);

struct SlotParams;

// Whether there is no stage but those that are common, in their usual order.
bool is_usual(const SlotParams& params);

// Leaves in a row what may be drawn: what a stage removes becomes -inf.
class Stages {
 public:
  // `draw` has the seed, the index and a temperature of 1; `maxima` and `scores` are scratch.
  Stages(float* x, int64_t n, Draw& draw, Selector& selector, std::vector<float>& maxima,
         std::vector<float>& scores)
      : x_(x), n_(n), draw_(draw), selector_(selector), maxima_(maxima), scores_(scores) {}

  // Any stage but penalties. False when nothing is left in the row; draw.largest is then -inf.
  bool apply(Stage stage, const SlotParams& params);
  // Finds the largest logit that is left.
  bool look();

 private:
  void greedy();
  // Keeps what is scaled to `lowest` at least.
  void least(float lowest);
  void typical(float share);
  void keep(const float* scores, Border border);

  float* x_;
  int64_t n_;
  Draw& draw_;
  Selector& selector_;
  std::vector<float>&maxima_, &scores_;
};

}  // namespace kvasir
