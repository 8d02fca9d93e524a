#include "program/ops/places.h"

#include <algorithm>
#include <stdexcept>

namespace kvasir {
namespace {

constexpr int64_t kAxes = 3, kCorners = 4;

// ir/ops/places.py has the rule.
int32_t axis_of(const Record& r, int32_t pair) {
  const int32_t sections[kAxes] = {r.time_pairs, r.height_pairs, r.width_pairs};
  if (r.woven) return pair < kAxes * sections[pair % kAxes] ? pair % int32_t(kAxes) : 0;
  return int32_t(pair >= sections[0]) + int32_t(pair >= sections[0] + sections[1]);
}

}  // namespace

Angles::Angles(const Record& r, const Workspace& w)
    : table(w.table(r.table)), at(w.arrays.rope_positions), out(w.floats(r.out[0])) {
  if (!at) throw std::invalid_argument("angles of positions that the step does not have");
  for (int32_t i = 0; i < r.rotary_dim / 2; i++) axes.push_back(axis_of(r, i));
}

void Angles::run(const Extent& e, int64_t item, int) const {
  const int64_t half = int64_t(axes.size()), begin = item * kTokens;
  const int64_t end = std::min(begin + kTokens, e.tokens);
  for (int64_t t = begin; t < end; t++) {
    float* to = out + t * 2 * half;
    for (int64_t i = 0; i < half; i++) {
      const float* from = table + int64_t(at[t * kAxes + axes[size_t(i)]]) * 2 * half;
      to[i] = from[i];
      to[half + i] = from[half + i];
    }
  }
}

Between::Between(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)),
      corners(w.ints(r.in[0])),
      shares(w.floats(r.in[1])),
      table(w.vector(r.weight[0])),
      out(w.floats(r.out[0])),
      columns(w.columns(r.out[0])) {}

void Between::run(const Extent& e, int64_t item, int) const {
  const int64_t begin = item * kRows, end = std::min(begin + kRows, rows(e));
  for (int64_t m = begin; m < end; m++) {
    const int32_t* corner = corners + m * kCorners;
    const float* share = shares + m * kCorners;
    const float* from[kCorners];
    for (int64_t i = 0; i < kCorners; i++) from[i] = table + int64_t(corner[i]) * columns;
    for (int64_t c = 0; c < columns; c++) {
      float sum = from[0][c] * share[0];
      for (int64_t i = 1; i < kCorners; i++) sum += from[i][c] * share[i];
      out[m * columns + c] = sum;
    }
  }
}

}  // namespace kvasir
