#include "program/ops/pool_rows.h"

#include <algorithm>
#include <stdexcept>

namespace kvasir {

PoolRows::PoolRows(const Record& r, const Workspace& w)
    : rows(w.floats(r.in[0])), columns(w.columns(r.in[0])), slot(w.arrays.logit_slot), sums(w.arrays.sums) {
  if (sums == nullptr) throw std::invalid_argument("a program that pools needs the step array sums");
}

void PoolRows::run(const Extent& e, int64_t item, int) const {
  const int64_t first = item * kColumns, n = std::min(kColumns, columns - first);
  for (int64_t m = 0; m < e.logits; m++) {
    const float* row = rows + m * columns + first;
    double* sum = sums + slot[e.logit_begin + m] * columns + first;
    for (int64_t i = 0; i < n; i++) sum[i] += double(row[i]);
  }
}

}  // namespace kvasir
