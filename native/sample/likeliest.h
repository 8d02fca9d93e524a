// The first tokens of a logit row, for who drafts from them.
#pragma once
#include <cstdint>

namespace kvasir {

// Ids of `logits` [n] in the order (logit descending, id ascending), `k` of them; -1 where the row has no
// more above -inf, or is no distribution.
void likeliest(const float* logits, int64_t n, int32_t* ids, int64_t k);

}  // namespace kvasir
