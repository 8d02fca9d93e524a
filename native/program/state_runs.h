// Where the tokens of a step find the state of their sequence, and where they leave it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace kvasir {

// The tokens of one sequence, cut where blocks begin: run(first token, tokens, before, after). `before` is
// null in front of the first token of all; inside a block it is `after`. So a full block is left behind as it
// was when its last token was computed.
template <class Run>
void each_run(const KvLayer& kv, const StepRows& rows, int64_t seq, const Run& run) {
  const int32_t* table = rows.tables + seq * rows.max_blocks;
  const auto state = [&](int64_t position) {
    return reinterpret_cast<float*>(kv.base + table[position / kv.block_size] * kv.block_bytes);
  };
  int64_t position = rows.seq_start[seq];
  for (int64_t m = rows.seq_begin[seq], n; m < rows.seq_begin[seq + 1]; m += n, position += n) {
    n = std::min<int64_t>(rows.seq_begin[seq + 1] - m, kv.block_size - position % kv.block_size);
    const float* before = position ? state(position - 1) : nullptr;
    run(m, n, before, state(position));
  }
}

}  // namespace kvasir
