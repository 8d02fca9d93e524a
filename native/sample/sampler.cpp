#include "sample/sampler.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "sample/numerics.h"
#include "sample/select.h"

namespace kvasir {
namespace {

constexpr int32_t kNotFinite = -1, kNothingLeft = -2;
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::min();

struct Scratch {
  Selector selector;
  std::vector<float> maxima;
  std::vector<std::pair<int32_t, float>> saved;  // logits as they were, oldest first
  std::vector<float> allowed;                    // logits of what a mask allows
};

void check_id(int32_t id, int32_t vocab, const char* what) {
  if (id < 0 || id >= vocab) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(id) +
                                " is outside the vocabulary of " + std::to_string(vocab));
  }
}

// Changes logits and remembers what they were.
class Editor {
 public:
  Editor(float* logits, std::vector<std::pair<int32_t, float>>& saved) : logits_(logits), saved_(saved) {
    saved_.clear();
  }
  float get(int32_t id) const { return logits_[id]; }
  void set(int32_t id, float value) {
    saved_.emplace_back(id, logits_[id]);
    logits_[id] = value;
  }
  bool changed() const { return !saved_.empty(); }
  void restore() {
    for (auto it = saved_.rbegin(); it != saved_.rend(); ++it) logits_[it->first] = it->second;
    saved_.clear();
  }

 private:
  float* logits_;
  std::vector<std::pair<int32_t, float>>& saved_;
};

RowMax largest_of(const float* logits, int32_t vocab, const Maxima& maxima) {
  if (maxima.runs.empty()) return row_max(logits, vocab);
  RowMax all{-kInfinity, false};
  for (const RowMax& run : maxima.runs) {
    all.value = std::max(all.value, run.value);
    all.has_nan |= run.has_nan;
  }
  return all;
}

// The lowest id among the likeliest.
int32_t first_largest(const float* logits, int32_t vocab, float largest, const Maxima& maxima) {
  int64_t start = 0;
  for (const RowMax& run : maxima.runs) {
    if (run.value == largest) break;
    start += maxima.columns;
  }
  return int32_t(start) + first_equal(logits + start, vocab - start, largest);
}

Drawn report(const float* logits, int32_t vocab, float largest, int32_t token, int32_t n_top,
             Scratch& scratch) {
  const float log_sum = natural_log(exp_sum(logits, vocab, largest));
  const auto logprob = [&](int32_t id) { return (logits[id] - largest) - log_sum; };
  Drawn drawn{token, logprob(token), 1 + count_ahead(logits, vocab, token), {}};
  if (n_top > 0) {
    block_max(logits, vocab, scratch.maxima);
    const Border border = scratch.selector.top_k(logits, vocab, scratch.maxima, n_top);
    for (int32_t id : scratch.selector.list(logits, vocab, scratch.maxima, border)) {
      drawn.top.emplace_back(id, logprob(id));
    }
  }
  return drawn;
}

// What `mask` allows, in a row of its own: the distribution that is reported stays as it was.
float* allowed(const float* logits, int32_t vocab, const uint32_t* mask, Scratch& scratch) {
  scratch.allowed.resize(static_cast<size_t>(vocab));
  mask_row(logits, vocab, mask, scratch.allowed.data());
  return scratch.allowed.data();
}

int32_t draw_token(const float* x, int32_t vocab, float largest, const SlotParams& params, int64_t out_index,
                   Scratch& scratch) {
  block_max(x, vocab, scratch.maxima);
  Draw draw{params.seed, out_index, largest, params.temperature, {-kInfinity, -1}, -kInfinity};
  if (params.min_p >= kSmallest) draw.lowest = natural_log(params.min_p);
  if (params.top_k > 0) draw.border = scratch.selector.top_k(x, vocab, scratch.maxima, params.top_k);
  if (params.top_p < 1) draw.border = scratch.selector.top_p(x, vocab, scratch.maxima, draw, params.top_p);
  return gumbel_argmax(x, vocab, scratch.maxima, draw);
}

}  // namespace

struct Sampler::State {
  SlotParams params;
  bool penalises;
  std::unordered_map<int32_t, int32_t> n_outputs;  // of every token of prompt and output

  explicit State(const SlotParams& p)
      : params(p),
        penalises(p.repetition_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0) {}

  void see(int32_t token, int32_t n) {
    if (penalises) n_outputs[token] += n;
  }

  float penalised(float x, int32_t n) const {
    float y = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    y = y - params.frequency_penalty * static_cast<float>(n);
    y = y - (n > 0 ? params.presence_penalty : 0.0f);
    return std::min(y, kLargest);
  }

  void penalise(Editor& logits, std::span<const int32_t> path) const {
    for (size_t i = 0; i < path.size(); ++i) {
      const auto seen = path.first(i);
      if (std::find(seen.begin(), seen.end(), path[i]) != seen.end()) continue;
      const auto known = n_outputs.find(path[i]);
      const auto n = static_cast<int32_t>(std::count(path.begin(), path.end(), path[i]));
      logits.set(path[i], penalised(logits.get(path[i]), n + (known == n_outputs.end() ? 0 : known->second)));
    }
    for (const auto& [token, n] : n_outputs) {
      if (std::find(path.begin(), path.end(), token) == path.end())
        logits.set(token, penalised(logits.get(token), n));
    }
  }

  void process(Editor& logits, int64_t out_index, std::span<const int32_t> path) const {
    for (const auto& [token, bias] : params.logit_bias) logits.set(token, logits.get(token) + bias);
    if (out_index < params.min_tokens) {
      for (int32_t token : params.stop_ids) logits.set(token, -kInfinity);
    }
    if (penalises) penalise(logits, path);
  }
};

Sampler::Sampler(int32_t max_slots, int32_t vocab) : vocab_(vocab) {
  if (max_slots < 1 || vocab < 1)
    throw std::invalid_argument("a sampler needs at least one slot and one token");
  slots_.resize(static_cast<size_t>(max_slots));
}

Sampler::~Sampler() = default;

void Sampler::open(int32_t slot, const SlotParams& params, std::span<const int32_t> prompt,
                   std::span<const int32_t> output) {
  for (const auto& [token, bias] : params.logit_bias) check_id(token, vocab_, "biased token");
  for (int32_t token : params.stop_ids) check_id(token, vocab_, "stop token");
  for (int32_t token : prompt) check_id(token, vocab_, "prompt token");
  for (int32_t token : output) check_id(token, vocab_, "output token");
  auto state = std::make_unique<State>(params);
  for (int32_t token : prompt) state->see(token, 0);
  for (int32_t token : output) state->see(token, 1);
  slots_.at(static_cast<size_t>(slot)) = std::move(state);
}

void Sampler::commit(int32_t slot, int32_t token) {
  check_id(token, vocab_, "committed token");
  const auto& state = slots_.at(static_cast<size_t>(slot));
  if (!state) throw std::invalid_argument("slot " + std::to_string(slot) + " was never opened");
  state->see(token, 1);
}

Drawn Sampler::sample(int32_t slot, float* logits, int64_t out_index, std::span<const int32_t> path,
                      int32_t target, Maxima maxima, const uint32_t* mask) const {
  thread_local Scratch scratch;
  const auto& state = slots_.at(static_cast<size_t>(slot));
  if (!state) throw std::invalid_argument("slot " + std::to_string(slot) + " was never opened");
  for (int32_t token : path) check_id(token, vocab_, "path token");
  if (target >= 0) check_id(target, vocab_, "target token");
  const SlotParams& params = state->params;
  const RowMax raw = largest_of(logits, vocab_, maxima);
  if (raw.has_nan || raw.value == kInfinity || raw.value == -kInfinity) return {kNotFinite, 0, 0, {}};
  if (target >= 0)
    return report(logits, vocab_, raw.value, target, std::max(params.n_prompt_logprobs, 0), scratch);

  float* x = mask == nullptr ? logits : allowed(logits, vocab_, mask, scratch);
  Editor editor(x, scratch.saved);
  state->process(editor, out_index, path);
  const bool is_raw = x == logits && !editor.changed();
  if (!is_raw) maxima = {};
  const float largest = is_raw ? raw.value : row_max(x, vocab_).value;
  if (largest == -kInfinity) return {kNothingLeft, 0, 0, {}};
  const int32_t token = params.temperature == 0 ? first_largest(x, vocab_, largest, maxima)
                                                : draw_token(x, vocab_, largest, params, out_index, scratch);
  if (params.n_logprobs < 0) return {token, 0, 0, {}};
  editor.restore();
  return report(logits, vocab_, raw.value, token, params.n_logprobs, scratch);
}

}  // namespace kvasir
