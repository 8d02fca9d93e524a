// Ops between the tokens of a draft program and those of its target.
#pragma once
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

// in: none, the step's tokens; out: i32; table: of each token another id.
struct RenameTokens {
  static constexpr const char* kName = "rename_tokens";
  RenameTokens(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return ceil_div(e.tokens, kTokens); }
  void run(const Extent& e, int64_t item, int thread) const;

  static constexpr int64_t kTokens = 512;  // of an item
  const int32_t* tokens;
  const float* ids;
  int32_t* out;
};

// in: f32 logits of own tokens; out: f32 logits of the target's, minus infinity where it has none of them;
// table: of each own token the target's, or -1.
struct PlaceLogits {
  static constexpr const char* kName = "place_logits";
  PlaceLogits(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return e.logits; }
  void run(const Extent& e, int64_t item, int thread) const;

  const float *from, *ids;
  float* to;
  int64_t n_own, n_target;
};

}  // namespace kvasir
