// Where the tokens of a step find the state of their sequence, and where they leave it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace kvasir {

// Throws std::invalid_argument unless the layer keeps a state of so many bytes.
inline void check_state(const KvLayer& kv, int32_t layer, int64_t n_bytes) {
  if (!kv.is_state() || kv.head_bytes != n_bytes)
    throw std::invalid_argument("layer " + std::to_string(layer) + " keeps no state of " +
                                std::to_string(n_bytes) + " bytes");
}

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
