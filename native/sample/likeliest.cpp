#include "sample/likeliest.h"

#include <algorithm>
#include <vector>

#include "sample/numerics.h"
#include "sample/rows.h"
#include "sample/select.h"

namespace kvasir {

void likeliest(const float* logits, int64_t n, int32_t* ids, int64_t k) {
  thread_local Selector selector;
  thread_local std::vector<float> maxima;
  std::fill_n(ids, k, -1);
  const RowMax raw = row_max(logits, n);
  if (raw.has_nan || raw.value == kInfinity || raw.value == -kInfinity) return;
  block_max(logits, n, maxima);
  const Border border = selector.top_k(logits, n, maxima, int32_t(std::min(k, n)));
  const std::vector<int32_t> found = selector.list(logits, n, maxima, border);
  std::copy_n(found.begin(), std::min(int64_t(found.size()), k), ids);
}

}  // namespace kvasir
