#include "sample/rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sample/philox.h"

namespace kvasir {
namespace {

// No noise exceeds -log(2^-33) = 22.9: below best - kMostNoise a token cannot win.
constexpr float kMostNoise = 23.0f;

// Four of the sixteen lanes. The compiler may not reorder sums and maxima of floats by itself.
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t Mask __attribute__((vector_size(16)));
constexpr int kQuads = kLanes / 4;

KVASIR_INLINE Quad quad(const float* x) {
  Quad v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}

struct Best {
  float score = -kInfinity;
  int32_t token = -1;
  void take(float other_score, int32_t other) {
    if (token < 0 || other_score > score || (other_score == score && other < token)) {
      score = other_score;
      token = other;
    }
  }
};

// Without a branch, so that loops vectorise.
KVASIR_INLINE float value_if(bool condition, float value) {
  const uint32_t mask = condition ? 0xFFFFFFFFu : 0;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) & mask) |
                              (std::bit_cast<uint32_t>(-kInfinity) & ~mask));
}

KVASIR_INLINE float max_of_block(const float* x) {
  Quad largest = quad(x);
  for (int i = 4; i < kBlock; i += 4) {
    const Quad v = quad(x + i);
    largest = v > largest ? v : largest;
  }
  float value = largest[0];
  for (int lane = 1; lane < 4; ++lane) value = largest[lane] > value ? largest[lane] : value;
  return value;
}

KVASIR_INLINE void mask_words(const float* x, int64_t n, const uint32_t* mask, float* out) {
  for (int64_t start = 0; start < n; start += 32) {
    const uint32_t word = mask[start / 32];
    const int count = static_cast<int>(std::min<int64_t>(32, n - start));
    for (int i = 0; i < count; ++i) out[start + i] = value_if(word >> i & 1, x[start + i]);
  }
}

// Of the logits from `start` those that `mask` allows, the others -inf.
KVASIR_INLINE void mask_block(const float* x, int64_t start, int64_t n, const uint32_t* mask, float* out) {
  std::fill(out, out + kBlock, -kInfinity);
  mask_words(x + start, std::min<int64_t>(kBlock, n - start), mask + start / 32, out);
}

KVASIR_INLINE Best best_of_block(const float* x, int64_t start, int64_t n, const uint32_t* mask,
                                 const Draw& draw) {
  uint32_t words[kBlock];
  float noise[kBlock], padded[kBlock], score[kBlock];
  philox_block(draw.seed, draw.out_index, draw.stream, static_cast<uint32_t>(start / kBlock), words);
  for (int i = 0; i < kBlock; ++i) noise[i] = log_of(exponential(words[i]));
  const float* logits = x + start;
  if (mask != nullptr) {
    mask_block(x, start, n, mask, padded);
    logits = padded;
  } else if (start + kBlock > n) {
    std::fill(padded, padded + kBlock, -kInfinity);
    std::copy(x + start, x + n, padded);
    logits = padded;
  }
  const int32_t border_place = draw.border.id - static_cast<int32_t>(start);
  for (int i = 0; i < kBlock; ++i) {
    const float z = (logits[i] - draw.largest) / draw.temperature;
    const bool is_before =
        (logits[i] > draw.border.logit) | ((logits[i] == draw.border.logit) & (i <= border_place));
    score[i] = value_if(is_before & (z >= draw.lowest), z - noise[i]);
  }
  const float best = max_of_block(score);
  if (best == -kInfinity) return {};
  int place = 0;
  while (score[place] != best) ++place;
  return {best, static_cast<int32_t>(start) + place};
}

}  // namespace

KVASIR_CLONES RowMax row_max(const float* x, int64_t n) {
  Quad largest[kQuads];
  Mask nan{};
  for (Quad& v : largest) v = Quad{} - kInfinity;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int q = 0; q < kQuads; ++q) {
      const Quad v = quad(x + i + 4 * q);
      largest[q] = v > largest[q] ? v : largest[q];
      nan |= v != v;
    }
  }
  RowMax result{-kInfinity, (nan[0] | nan[1] | nan[2] | nan[3]) != 0};
  for (const Quad& v : largest) {
    for (int lane = 0; lane < 4; ++lane) result.value = v[lane] > result.value ? v[lane] : result.value;
  }
  for (; i < n; ++i) {
    result.has_nan |= x[i] != x[i];
    result.value = x[i] > result.value ? x[i] : result.value;
  }
  return result;
}

KVASIR_CLONES void mask_row(const float* x, int64_t n, const uint32_t* mask, float* out) {
  mask_words(x, n, mask, out);
}

KVASIR_CLONES int32_t first_equal(const float* x, int64_t n, float value) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    int32_t hits = 0;
    for (int j = 0; j < kBlock; ++j) hits += x[i + j] == value;
    if (hits) break;
  }
  for (; i < n; ++i) {
    if (x[i] == value) return static_cast<int32_t>(i);
  }
  return -1;
}

KVASIR_CLONES float exp_sum(const float* x, int64_t n, float largest) {
  float total = 0;
  float e[kTile];
  for (int64_t tile = 0; tile < n; tile += kTile) {
    const int count = static_cast<int>(std::min<int64_t>(kTile, n - tile));
    for (int i = 0; i < count; ++i) e[i] = exp_of(x[tile + i] - largest);
    for (int i = count; i % kLanes != 0; ++i) e[i] = 0;
    Quad lanes[kQuads] = {};
    for (int i = 0; i < count; i += kLanes) {
      for (int q = 0; q < kQuads; ++q) lanes[q] += quad(e + i + 4 * q);
    }
    const Quad sum = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    total += (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
  return total;
}

KVASIR_CLONES int32_t count_ahead(const float* x, int64_t n, int32_t token) {
  const float value = x[token];
  int32_t count = 0;
  for (int64_t i = 0; i < token; ++i) count += x[i] >= value;
  for (int64_t i = token + 1; i < n; ++i) count += x[i] > value;
  return count;
}

KVASIR_CLONES void block_max(const float* x, int64_t n, std::vector<float>& out) {
  out.resize(static_cast<size_t>((n + kBlock - 1) / kBlock));
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) out[static_cast<size_t>(i / kBlock)] = max_of_block(x + i);
  if (i < n) out.back() = *std::max_element(x + i, x + n);
}

KVASIR_CLONES void masked_block_max(const float* x, int64_t n, const uint32_t* mask,
                                    std::vector<float>& out) {
  out.resize(static_cast<size_t>((n + kBlock - 1) / kBlock));
  float block[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    const uint32_t first = mask[i / 32], second = i + 32 < n ? mask[i / 32 + 1] : 0;
    float& value = out[static_cast<size_t>(i / kBlock)];
    value = -kInfinity;
    if ((first & second) == ~0u && i + kBlock <= n) {
      value = max_of_block(x + i);
    } else if ((first | second) != 0) {
      mask_block(x, i, n, mask, block);
      value = max_of_block(block);
    }
  }
}

KVASIR_CLONES void block_mass(const float* x, int64_t start, int64_t n, const Draw& draw, uint64_t* mass) {
  const int count = static_cast<int>(std::min<int64_t>(kBlock, n - start));
  float share[kBlock];
  for (int i = 0; i < count; ++i) {
    const float z = (x[start + i] - draw.largest) / draw.temperature;
    share[i] = z >= draw.lowest ? exp_of(z) * 0x1p40f : 0.0f;
  }
  for (int i = 0; i < count; ++i) mass[i] = static_cast<uint64_t>(static_cast<int64_t>(share[i]));
}

KVASIR_CLONES void scale_row(const float* x, int64_t n, const Draw& draw, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - draw.largest) / draw.temperature;
}

KVASIR_CLONES void sum_terms(const float* x, int64_t n, const Draw& draw, uint64_t& mass, uint64_t& terms) {
  for (int64_t i = 0; i < n; ++i) {
    const float z = (x[i] - draw.largest) / draw.temperature;
    const float share = exp_of(z), below = share > 0 ? -z : 0.0f;
    mass += static_cast<uint64_t>(static_cast<int64_t>(share * 0x1p40f));
    terms += static_cast<uint64_t>(static_cast<int64_t>(share * below * 0x1p40f));
  }
}

KVASIR_CLONES void distance_row(const float* x, int64_t n, const Draw& draw, float mean, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = -std::fabs((x[i] - draw.largest) / draw.temperature + mean);
}

KVASIR_CLONES void keep_row(const float* scores, int64_t n, Border border, float* x) {
  for (int64_t i = 0; i < n; ++i) {
    const bool is_before = (scores[i] > border.logit) | ((scores[i] == border.logit) & (i <= border.id));
    x[i] = value_if(is_before, x[i]);
  }
}

KVASIR_CLONES int32_t gumbel_argmax(const float* x, int64_t n, const std::vector<float>& maxima,
                                    const Draw& draw, const uint32_t* mask) {
  // From the block of the largest logit: a high score early excludes most other blocks unseen.
  size_t first = 0;
  while (maxima[first] != draw.largest) ++first;
  Best best = best_of_block(x, static_cast<int64_t>(first) * kBlock, n, mask, draw);
  for (size_t b = 0; b < maxima.size(); ++b) {
    const float z = (maxima[b] - draw.largest) / draw.temperature;
    const bool cannot_win = z < draw.lowest || z + kMostNoise < best.score;
    if (b == first || maxima[b] < draw.border.logit || cannot_win) continue;
    const Best other = best_of_block(x, static_cast<int64_t>(b) * kBlock, n, mask, draw);
    if (other.token >= 0) best.take(other.score, other.token);
  }
  return best.token;
}

uint32_t philox_word(uint64_t seed, int64_t out_index, uint32_t token, uint32_t stream) {
  uint32_t words[kBlock];
  philox_block(seed, out_index, stream, token / kBlock, words);
  return words[token % kBlock];
}

float natural_log(float x) { return log_of(x); }

}  // namespace kvasir
