#pragma once
#include "program/ops/head_maxima.h"
#include "program/workspace.h"

namespace kvasir {

// Draws or scores a token of each logit row. in: logits, which are overwritten; out: none, what is drawn goes
// to the step's arrays.
struct Sample {
  static constexpr const char* kName = "sample";
  Sample(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return e.logits; }
  void run(const Extent& e, int64_t item, int thread) const;

  Role role(int64_t row) const;

  const Workspace& workspace;
  float* logits;
  int64_t vocab;
  const HeadMaxima* maxima = nullptr;
};

}  // namespace kvasir
