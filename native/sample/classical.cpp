#include "sample/classical.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "sample/philox.h"

namespace kvasir {
namespace {

constexpr float kSmallest = std::numeric_limits<float>::min();

}  // namespace

KVASIR_CLONES void share_row(const float* x, int64_t n, const Draw& draw, float* out) {
  int64_t mass = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float z = (x[i] - draw.largest) / draw.temperature;
    const bool is_before = (x[i] > draw.border.logit) | ((x[i] == draw.border.logit) & (i <= draw.border.id));
    const float share = exp_of(z);
    out[i] = is_before & (z >= draw.lowest) ? share : 0.0f;
    mass += static_cast<int64_t>(out[i] * 0x1p40f);
  }
  const float total = static_cast<float>(static_cast<double>(mass) * 0x1p-40);
  for (int64_t i = 0; i < n; ++i) {
    const float share = out[i] / total;
    out[i] = share < kSmallest ? 0.0f : share;
  }
}

KVASIR_CLONES int32_t judged(const float* p, const float* q, int64_t n, int32_t drafted, uint64_t seed,
                             int64_t out_index) {
  uint32_t words[kBlock];
  float noise[kBlock];
  philox_block(seed, out_index, kVerdictNoise, 0, words);
  if (uniform(words[0]) * q[drafted] < p[drafted]) return drafted;
  float best = -kInfinity;
  int32_t token = drafted;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kBlock, n - start));
    const float *target = p + start, *draft = q + start;
    int n_left = 0;
    for (int i = 0; i < count; ++i) n_left += target[i] - draft[i] >= kSmallest;
    if (n_left == 0) continue;
    philox_block(seed, out_index, kTargetNoise, static_cast<uint32_t>(start / kBlock), words);
    for (int i = 0; i < kBlock; ++i) noise[i] = log_of(exponential(words[i]));
    for (int i = 0; i < count; ++i) {
      const float left = target[i] - draft[i];
      if (left < kSmallest) continue;
      const float score = log_of(left) - noise[i];
      if (score <= best) continue;
      best = score;
      token = static_cast<int32_t>(start) + i;
    }
  }
  return token;
}

Proposals::Proposals(int64_t slots, int64_t most, int64_t vocab) : most_(most), vocab_(size_t(vocab)) {
  if (slots < 1 || most < 1 || vocab < 1) throw std::invalid_argument("drafts are kept of one slot at least");
  const auto n = size_t(slots * most);
  shares_ = std::make_unique_for_overwrite<float[]>(n * vocab_);
  index_ = std::make_unique_for_overwrite<int64_t[]>(n);
  token_ = std::make_unique<int32_t[]>(n);
  std::fill(index_.get(), index_.get() + n, -1);
}

void Proposals::forget(int64_t slot) {
  std::fill(&index_[size_t(slot * most_)], &index_[size_t(slot * most_)] + most_, -1);
}

void Proposals::drew(int64_t slot, int64_t out_index, int32_t token) const {
  const size_t at = place(slot, out_index);
  index_[at] = out_index;
  token_[at] = token;
}

const float* Proposals::of(int64_t slot, int64_t out_index, int32_t token) const {
  const size_t at = place(slot, out_index);
  return index_[at] == out_index && token_[at] == token ? &shares_[at * vocab_] : nullptr;
}

}  // namespace kvasir
