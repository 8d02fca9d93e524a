// Passes over one row of logits float [n]; the hot loops of sampling.
#pragma once
#include <cstdint>
#include <vector>

namespace kvasir {

struct RowMax {
  float value;
  bool has_nan;
};

// The last token kept in the order (logit descending, id ascending).
struct Border {
  float logit;
  int32_t id;
  bool keeps(float x, int32_t i) const { return x > logit || (x == logit && i <= id); }
};

struct Draw {
  uint64_t seed;
  int64_t out_index;
  float largest;      // of the row
  float temperature;  // > 0
  Border border;
  float lowest;         // tokens with (logit - largest) / temperature below this are out
  uint32_t stream = 0;  // of the noise (sample/philox.h)
};

RowMax row_max(const float* x, int64_t n);
// `out` [n] is `x`, and -inf where the bit in `mask` [ceil(n / 32)] is 0.
void mask_row(const float* x, int64_t n, const uint32_t* mask, float* out);
int32_t first_equal(const float* x, int64_t n, float value);
// Sum of exp(x - largest): lanes within tiles, tiles in order.
float exp_sum(const float* x, int64_t n, float largest);
// Tokens before `token` in the order (logit descending, id ascending).
int32_t count_ahead(const float* x, int64_t n, int32_t token);
// Largest of each 64 tokens.
void block_max(const float* x, int64_t n, std::vector<float>& out);
// The same of what `mask` [ceil(n / 32)] allows; of 64 tokens that it forbids nothing is read.
void masked_block_max(const float* x, int64_t n, const uint32_t* mask, std::vector<float>& out);
// Probabilities of 64 tokens from `start`, relative to the likeliest, as integers of 2^-40; 0 below `lowest`.
void block_mass(const float* x, int64_t start, int64_t n, const Draw& draw, uint64_t* mass);
// `out` [n]: (x - largest) / temperature.
void scale_row(const float* x, int64_t n, const Draw& draw, float* out);
// Over a row, as integers of 2^-40: probabilities relative to the likeliest, and the same times -z.
void sum_terms(const float* x, int64_t n, const Draw& draw, uint64_t& mass, uint64_t& terms);
// `out` [n]: -|z + mean|, the farther from the mean the lower.
void distance_row(const float* x, int64_t n, const Draw& draw, float mean, float* out);
// `x` [n] is -inf where `border` does not keep the score.
void keep_row(const float* scores, int64_t n, Border border, float* x);
// The kept token with the largest (logit - largest) / temperature - log(E). `maxima`: the row's block_max, or
// masked_block_max with the `mask`.
int32_t gumbel_argmax(const float* x, int64_t n, const std::vector<float>& maxima, const Draw& draw,
                      const uint32_t* mask = nullptr);

// The word behind the noise of one token.
uint32_t philox_word(uint64_t seed, int64_t out_index, uint32_t token, uint32_t stream = 0);
float natural_log(float x);

}  // namespace kvasir
