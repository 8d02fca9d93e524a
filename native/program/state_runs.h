// Where the tokens of a step find the state of their sequence, and where they leave it.
#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "program/spec.h"

namespace kvasir {

// Throws std::invalid_argument unless the layer keeps a state of so many bytes.
inline void check_state(const KvLayer& kv, int32_t layer, int64_t n_bytes) {
  if (!kv.is_state() || kv.head_bytes != n_bytes)
    throw std::invalid_argument("layer " + std::to_string(layer) + " keeps no state of " +
                                std::to_string(n_bytes) + " bytes");
}

// A pointer that has `data` at element `index`, for kernels that count from the first of all.
inline float* counted_from(float* data, int64_t index) {
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(data) - uintptr_t(index) * sizeof(float));
}

// Of one sequence: the inputs of drafted tokens, kept until it is known which of them were right.
struct KeptRows {
  const StepDrafts* drafts;
  int64_t seq;
  bool any() const { return drafts->most > 0; }
  int64_t at(int64_t start) const { return any() ? drafts->at[seq] : start; }
  int64_t certain(int64_t n) const { return any() ? std::min<int64_t>(drafts->certain[seq], n) : n; }
  // Of the i-th accepted token of the step before; of token i of this one.
  float* taken(int64_t i) const { return row(drafts->taken[seq * drafts->most + i]); }
  float* row(int64_t token) const {
    return drafts->inputs + (drafts->slot[seq] * drafts->most + token - 1) * drafts->columns;
  }
};

// The tokens of one sequence, each after the one before. Where the last step drafted, those that were
// accepted come first: op.take(kept inputs, before, after). The step's own follow, cut where blocks begin:
// op.run(first token, tokens, before, after). `before` is null in front of the first token of all; inside a
// block it is `after`. So a full block is left behind as it was when its last token was computed. Drafted
// tokens leave no state behind: each goes on from its parent's, in `drafted(token of the row)`, and
// op.keep(token, row) keeps what it read. An item takes and keeps the columns that are its own.
template <class Op, class Drafted>
void each_run(const KvLayer& kv, const StepRows& rows, const KeptRows& kept, const Op& op,
              const Drafted& drafted) {
  const int64_t seq = kept.seq, begin = rows.seq_begin[seq], end = rows.seq_begin[seq + 1];
  const int32_t* table = rows.tables + seq * rows.max_blocks;
  const auto state = [&](int64_t position) {
    return reinterpret_cast<float*>(kv.base + table[position / kv.block_size] * kv.block_bytes);
  };
  const auto before = [&](int64_t position) { return position ? state(position - 1) : nullptr; };
  int64_t position = kept.at(rows.seq_start[seq]);
  for (int64_t i = 0; position < rows.seq_start[seq]; i++, position++)
    op.take(kept.taken(i), before(position), state(position));
  const int64_t certain = begin + kept.certain(end - begin);
  for (int64_t m = begin, n; m < certain; m += n, position += n) {
    n = std::min<int64_t>(certain - m, kv.block_size - position % kv.block_size);
    op.run(m, n, before(position), state(position));
  }
  for (int64_t m = certain; m < end; m++) {
    const int64_t parent = rows.parent[m] < 0 ? m - 1 : rows.parent[m];
    op.run(m, 1, parent < certain ? state(position - 1) : drafted(parent - begin), drafted(m - begin));
    op.keep(m, kept.row(m - begin));
  }
}

}  // namespace kvasir
