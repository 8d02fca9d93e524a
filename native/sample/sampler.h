// Sampling of one logit row: penalties, bias, filters, Gumbel-max with counter-based noise, logprobs.
// Everything here is plain mul/add arithmetic (no FMA) so that sampling/reference.py gives the same bits in
// NumPy.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sample/classical.h"
#include "sample/rows.h"

namespace kvasir {

// Of kvasir.core.params.TokenParams.
struct SlotParams {
  uint64_t seed = 0;
  float temperature = 1, top_p = 1, min_p = 0, typical_p = 1;
  int32_t top_k = 0;
  float repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int32_t repeat_last_n = -1;
  int32_t min_tokens = 0;
  int32_t n_logprobs = -1, n_prompt_logprobs = -1;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> stop_ids, logprob_ids;
  std::vector<std::string> samplers;            // stages in an order of its own
  std::vector<uint32_t> allowed;                // a mask; empty: everything
  std::vector<std::vector<int32_t>> bad_words;  // of each, the last token cannot follow the others

  // Whether draws depend on how often tokens came before.
  bool penalises() const {
    return repeat_last_n != 0 && (repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0);
  }
  // The logit `x` of a token that came before, `n` times in the output.
  float penalised(float x, int32_t n) const {
    float y = x > 0 ? x / repetition_penalty : x * repetition_penalty;
    y = y - frequency_penalty * static_cast<float>(n);
    y = y - (n > 0 ? presence_penalty : 0.0f);
    return std::min(y, std::numeric_limits<float>::max());
  }
  // What a scaled logit has at least, when min_p keeps it.
  float lowest() const;

  // read(name, field): all of them, by the names that they have there.
  template <class Read>
  void each(Read read) {
    read("seed", seed);
    read("temperature", temperature);
    read("top_p", top_p);
    read("min_p", min_p);
    read("typical_p", typical_p);
    read("top_k", top_k);
    read("repetition_penalty", repetition_penalty);
    read("presence_penalty", presence_penalty);
    read("frequency_penalty", frequency_penalty);
    read("repeat_last_n", repeat_last_n);
    read("min_tokens", min_tokens);
    read("n_logprobs", n_logprobs);
    read("n_prompt_logprobs", n_prompt_logprobs);
    read("logit_bias", logit_bias);
    read("stop_ids", stop_ids);
    read("logprob_ids", logprob_ids);
    read("samplers", samplers);
    read("allowed", allowed);
    read("bad_words", bad_words);
  }
};

struct Drawn {
  int32_t token = -1;  // -1: the logits were not finite, -2: every token is banned
  float logprob = 0;
  int32_t rank = 0;
  std::vector<std::pair<int32_t, float>> top;  // (id, logprob), likeliest first, ties to the lowest id;
                                               // or those that were asked for
  std::vector<int32_t> siblings;               // of what drafts, the next best
};

// The largest logits of each `columns` tokens, found by who computed them. Empty: the sampler looks itself.
struct Maxima {
  std::span<const RowMax> runs;
  int64_t columns = 0;
};

// What a row is to the classical rule, where the sampler keeps what was drafted.
struct Role {
  bool drafts = false;   // it draws for a draft program
  int32_t drafted = -1;  // what that drew of this output; -1: nobody did
  int32_t siblings = 0;  // it draws as many more for a draft program, the next best, of usual parameters
};

class Sampler {
 public:
  // kept: drafted tokens of a slot whose shares are kept for the classical rule; 0: drafts draw as the target
  // does.
  Sampler(int32_t max_slots, int32_t vocab, int32_t kept = 0);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  // Replaces whatever the slot held. Throws std::invalid_argument on ids outside the vocabulary.
  void open(int32_t slot, const SlotParams& params, std::span<const int32_t> prompt,
            std::span<const int32_t> output);
  // One emitted token, where draws depend on those before.
  void commit(int32_t slot, int32_t token);
  // `logits` [vocab] is overwritten. `path`: tokens drawn or drafted after the committed ones, before this
  // row. target >= 0 scores that token instead of drawing. `mask`: a bit of each token that may be drawn, in
  // words of 32; null allows all. Distinct rows may run on distinct threads at once.
  Drawn sample(int32_t slot, float* logits, int64_t out_index, std::span<const int32_t> path, int32_t target,
               Maxima maxima = {}, const uint32_t* mask = nullptr, Role role = {}) const;

  int32_t vocab() const { return vocab_; }

 private:
  struct State;
  std::vector<std::unique_ptr<State>> slots_;
  int32_t vocab_;
  std::unique_ptr<Proposals> proposals_;  // null: drafts are coupled
};

// 64-bit hash of the bits of a float row; equal on every platform and level.
uint64_t hash_row(const float* row, int64_t n);

}  // namespace kvasir
