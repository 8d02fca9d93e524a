// A recurrence over the state of each head and sequence. An item is a head of a sequence.
#pragma once
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

// in: f32 rows, steps, shares or none; out: f32; weight: bias of steps, rates, skips or none; layer, rule,
// n_heads, n_groups, state_dim, tiled, least, most, eps, kept: where its inputs are in what is kept of a
// drafted token: its row, which the convolution in front puts there when the token is accepted, steps,
// shares.
struct LinearScan {
  static constexpr const char* kName = "linear_scan";
  LinearScan(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return e.seqs * args.n_heads; }
  void run(const Extent& e, int64_t item, int thread) const;

  void (*kernel)(const LinearScanArgs&);
  LinearScanArgs args;
  const KvLayer* kv;
  const StepRows* rows;
  const Workspace* workspace;
  int64_t kept;
};

}  // namespace kvasir
