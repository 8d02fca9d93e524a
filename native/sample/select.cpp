#include "sample/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "sample/numerics.h"

namespace kvasir {
namespace {

constexpr int kHighShift = 21, kMiddleShift = 10;
constexpr uint32_t kHighBits = 11, kMiddleBits = 11, kLowBits = 10;
// exp(-28) < 2^-40: lighter tokens weigh nothing.
constexpr float kWeightless = -28.0f;

// Unsigned keys in the order of the floats; both zeros have one key.
uint32_t key_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float logit_of(uint32_t key) { return std::bit_cast<float>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

// What reaches `share` of a total.
auto share_of(float share) {
  return [=](uint64_t total) {
    const double needed = std::ceil(static_cast<double>(share) * static_cast<double>(total));
    return std::max<uint64_t>(1, static_cast<uint64_t>(needed));
  };
}

int64_t block_end(size_t block, int64_t n) {
  return std::min<int64_t>(static_cast<int64_t>(block + 1) * kBlock, n);
}

}  // namespace

uint32_t Selector::bin_reaching(uint64_t needed, uint64_t& before) const {
  uint32_t bin = static_cast<uint32_t>(bins_.size()) - 1;
  while (before + bins_[bin] < needed) before += bins_[bin--];
  return bin;
}

void Selector::narrow(int shift, uint32_t bits, uint64_t needed, uint64_t& before) {
  const uint32_t mask = (1u << bits) - 1;
  bins_.assign(mask + 1, 0);
  for (const Candidate& c : candidates_) bins_[(c.key >> shift) & mask] += c.weight;
  const uint32_t bin = bin_reaching(needed, before);
  std::erase_if(candidates_, [&](const Candidate& c) { return ((c.key >> shift) & mask) != bin; });
}

template <class Weigh, class Target>
Border Selector::reach(const float* x, int64_t n, const std::vector<float>& maxima, float floor, Weigh weigh,
                       Target target) {
  uint64_t weights[kBlock], total = 0;
  bins_.assign(1u << kHighBits, 0);
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < floor) continue;
    const int64_t start = static_cast<int64_t>(b) * kBlock, end = block_end(b, n);
    weigh(start, weights);
    for (int64_t i = start; i < end; ++i) bins_[key_of(x[i]) >> kHighShift] += weights[i - start];
  }
  for (uint64_t weight : bins_) total += weight;
  const uint64_t needed = target(total);
  if (needed > total) return {-kInfinity, -1};
  uint64_t before = 0;
  const uint32_t high = bin_reaching(needed, before);
  candidates_.clear();
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < floor || key_of(maxima[b]) >> kHighShift < high) continue;
    const int64_t start = static_cast<int64_t>(b) * kBlock, end = block_end(b, n);
    weigh(start, weights);
    for (int64_t i = start; i < end; ++i) {
      const uint32_t key = key_of(x[i]);
      if (key >> kHighShift == high && weights[i - start] > 0) {
        candidates_.push_back({key, static_cast<int32_t>(i), weights[i - start]});
      }
    }
  }
  narrow(kMiddleShift, kMiddleBits, needed, before);
  narrow(0, kLowBits, needed, before);
  size_t last = 0;
  while (before + candidates_[last].weight < needed) before += candidates_[last++].weight;
  return {logit_of(candidates_[last].key), candidates_[last].id};
}

Border Selector::top_k(const float* x, int64_t n, const std::vector<float>& maxima, int32_t k) {
  // At least k tokens reach the k-th largest block maximum.
  float floor = -kInfinity;
  if (static_cast<size_t>(k) <= maxima.size()) {
    order_ = maxima;
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), std::greater<>());
    floor = order_[static_cast<size_t>(k - 1)];
  }
  const auto weigh = [=](int64_t start, uint64_t* weights) {
    const int64_t end = std::min<int64_t>(start + kBlock, n);
    for (int64_t i = start; i < end; ++i) weights[i - start] = x[i] > -kInfinity;
  };
  return reach(x, n, maxima, floor, weigh, [=](uint64_t) { return static_cast<uint64_t>(k); });
}

Border Selector::top_p(const float* x, int64_t n, const std::vector<float>& maxima, const Draw& draw,
                       float top_p) {
  const auto weigh = [&](int64_t start, uint64_t* weights) {
    block_mass(x, start, n, draw, weights);
    const int64_t end = std::min<int64_t>(start + kBlock, n);
    for (int64_t i = start; i < end; ++i) {
      if (!draw.border.keeps(x[i], static_cast<int32_t>(i))) weights[i - start] = 0;
    }
  };
  // One unit more than exact: the floor only saves time and rounding must not lose a token that weighs.
  const float floor = draw.largest + (kWeightless - 1.0f) * draw.temperature;
  return reach(x, n, maxima, std::max(floor, draw.border.logit), weigh, share_of(top_p));
}

Border Selector::typical(const float* scores, const float* x, int64_t n, const std::vector<float>& maxima,
                         const Draw& draw, float share) {
  const auto weigh = [&](int64_t start, uint64_t* weights) { block_mass(x, start, n, draw, weights); };
  return reach(scores, n, maxima, -kInfinity, weigh, share_of(share));
}

std::vector<int32_t> Selector::list(const float* x, int64_t n, const std::vector<float>& maxima,
                                    Border border) const {
  std::vector<int32_t> ids;
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (maxima[b] < border.logit) continue;
    for (int64_t i = static_cast<int64_t>(b) * kBlock; i < block_end(b, n); ++i) {
      if (border.keeps(x[i], static_cast<int32_t>(i))) ids.push_back(static_cast<int32_t>(i));
    }
  }
  std::sort(ids.begin(), ids.end(), [x](int32_t a, int32_t b) { return x[a] != x[b] ? x[a] > x[b] : a < b; });
  return ids;
}

}  // namespace kvasir
