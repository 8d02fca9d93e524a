#include "program/ops/vocabularies.h"

#include <algorithm>
#include <limits>

namespace kvasir {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

}  // namespace

RenameTokens::RenameTokens(const Record& r, const Workspace& w)
    : tokens(w.arrays.tokens), ids(w.table(r.table)), out(w.ints(r.out[0])) {}

void RenameTokens::run(const Extent& e, int64_t item, int) const {
  const int64_t begin = item * kTokens, end = std::min(begin + kTokens, e.tokens);
  for (int64_t t = begin; t < end; t++) out[t] = int32_t(ids[tokens[t]]);
}

PlaceLogits::PlaceLogits(const Record& r, const Workspace& w)
    : from(w.floats(r.in[0])),
      ids(w.table(r.table)),
      to(w.floats(r.out[0])),
      n_own(w.columns(r.in[0])),
      n_target(w.columns(r.out[0])) {}

void PlaceLogits::run(const Extent&, int64_t item, int) const {
  const float* own = from + item * n_own;
  float* row = to + item * n_target;
  std::fill(row, row + n_target, kNever);
  for (int64_t i = 0; i < n_own; i++)
    if (const int32_t id = int32_t(ids[i]); id >= 0) row[id] = own[i];
}

}  // namespace kvasir
