// A convolution of few taps over the tokens of each sequence. An item is some channels of one sequence.
#pragma once
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

// in: f32 rows, gated: b | c | x; out: f32; weight: taps [n_taps, channels], bias or none; layer, n_taps,
// gated, kept, kept_out: where its inputs and results are in what is kept of a drafted token.
struct ShortConv {
  static constexpr const char* kName = "short_conv";
  ShortConv(const Record& r, const Workspace& w);
  int64_t items(const Extent& e) const { return e.seqs * chunks; }
  void run(const Extent& e, int64_t item, int thread) const;

  void (*kernel)(const ShortConvArgs&);
  ShortConvArgs args;
  const KvLayer* kv;
  const StepRows* rows;
  const Workspace* workspace;
  int64_t kept, kept_out;
  int64_t chunks;  // of channels
};

}  // namespace kvasir
