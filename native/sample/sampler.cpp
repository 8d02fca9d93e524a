#include "sample/sampler.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sample/history.h"
#include "sample/numerics.h"
#include "sample/philox.h"
#include "sample/select.h"
#include "sample/stages.h"

namespace kvasir {
namespace {

constexpr int32_t kNotFinite = -1, kNothingLeft = -2;

struct Scratch {
  Selector selector;
  std::vector<float> maxima;
  std::vector<std::pair<int32_t, float>> saved;  // logits as they were, oldest first
  std::vector<float> row;                        // logits of what may be drawn, where many may not
  std::vector<float> scores;
  std::vector<float> shares;
  History::Changes changes;
};

void check_id(int32_t id, int32_t vocab, const char* what) {
  if (id < 0 || id >= vocab) {
    throw std::invalid_argument(std::string(what) + " " + std::to_string(id) +
                                " is outside the vocabulary of " + std::to_string(vocab));
  }
}

void check_params(const SlotParams& params, int32_t vocab) {
  for (const auto& [token, bias] : params.logit_bias) check_id(token, vocab, "biased token");
  for (int32_t token : params.stop_ids) check_id(token, vocab, "stop token");
  for (int32_t token : params.logprob_ids) check_id(token, vocab, "reported token");
  for (const auto& word : params.bad_words) {
    if (word.empty()) throw std::invalid_argument("a bad word has no tokens");
    for (int32_t token : word) check_id(token, vocab, "token of a bad word");
  }
  if (!params.allowed.empty() && int64_t(params.allowed.size()) * 32 < vocab)
    throw std::invalid_argument("what is allowed must have one bit per token of the vocabulary");
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
             std::span<const int32_t> wanted, Scratch& scratch) {
  const float log_sum = natural_log(exp_sum(logits, vocab, largest));
  const auto logprob = [&](int32_t id) { return (logits[id] - largest) - log_sum; };
  Drawn drawn{token, logprob(token), 1 + count_ahead(logits, vocab, token), {}, {}};
  for (int32_t id : wanted) drawn.top.emplace_back(id, logprob(id));
  if (n_top > 0 && wanted.empty()) {
    block_max(logits, vocab, scratch.maxima);
    const Border border = scratch.selector.top_k(logits, vocab, scratch.maxima, n_top);
    for (int32_t id : scratch.selector.list(logits, vocab, scratch.maxima, border)) {
      drawn.top.emplace_back(id, logprob(id));
    }
  }
  return drawn;
}

// The end of a draw: which of the tokens that are left.
struct Ending {
  const Proposals* proposals;
  int32_t slot;
  Role role;

  // The next best of those that are left without `token`, and so on.
  std::vector<int32_t> siblings(float* x, int32_t vocab, const Draw& draw, int32_t token,
                                const Scratch& scratch) const {
    std::vector<int32_t> found;
    while (token >= 0 && int32_t(found.size()) < role.siblings) {
      x[token] = -kInfinity;
      token = gumbel_argmax(x, vocab, scratch.maxima, draw);
      if (token >= 0) found.push_back(token);
    }
    return found;
  }

  // `maxima`, block_max of `x`, is in the scratch.
  int32_t operator()(const float* x, int32_t vocab, Draw draw, Scratch& scratch) const {
    if (proposals == nullptr) return gumbel_argmax(x, vocab, scratch.maxima, draw);
    if (role.drafts) return propose(x, vocab, draw, scratch);
    const float* q = proposals->of(slot, draw.out_index, role.drafted);
    if (q == nullptr) return gumbel_argmax(x, vocab, scratch.maxima, draw);
    scratch.shares.resize(static_cast<size_t>(vocab));
    share_row(x, vocab, draw, scratch.shares.data());
    return judged(scratch.shares.data(), q, vocab, role.drafted, draw.seed, draw.out_index);
  }

  int32_t propose(const float* x, int32_t vocab, Draw draw, Scratch& scratch) const {
    draw.stream = kDraftNoise;
    share_row(x, vocab, draw, proposals->shares(slot, draw.out_index));
    const int32_t token = gumbel_argmax(x, vocab, scratch.maxima, draw);
    proposals->drew(slot, draw.out_index, token);
    return token;
  }
};

// The siblings of a greedy draft.
std::vector<int32_t> next_largest(float* x, int32_t vocab, int32_t token, int32_t n) {
  std::vector<int32_t> found;
  while (int32_t(found.size()) < n) {
    x[token] = -kInfinity;
    const float largest = row_max(x, vocab).value;
    if (largest == -kInfinity) break;
    token = first_equal(x, vocab, largest);
    found.push_back(token);
  }
  return found;
}

// `x` loses what is drawn where it has siblings.
Drawn draw_token(float* x, int32_t vocab, float largest, const SlotParams& params, int64_t out_index,
                 const Ending& ending, Scratch& scratch) {
  block_max(x, vocab, scratch.maxima);
  Draw draw{params.seed, out_index, largest, params.temperature, {-kInfinity, -1}, params.lowest()};
  if (params.top_k > 0) draw.border = scratch.selector.top_k(x, vocab, scratch.maxima, params.top_k);
  if (params.top_p < 1) draw.border = scratch.selector.top_p(x, vocab, scratch.maxima, draw, params.top_p);
  Drawn drawn{ending(x, vocab, draw, scratch), 0, 0, {}, {}};
  drawn.siblings = ending.siblings(x, vocab, draw, drawn.token, scratch);
  return drawn;
}

// The same of what `mask` allows, for params whose filters look at no other token; kNothingLeft when nothing
// can be drawn.
int32_t draw_masked(const float* x, int32_t vocab, const uint32_t* mask, const SlotParams& params,
                    int64_t out_index, Scratch& scratch) {
  masked_block_max(x, vocab, mask, scratch.maxima);
  const float largest = *std::max_element(scratch.maxima.begin(), scratch.maxima.end());
  if (largest == -kInfinity) return kNothingLeft;
  Draw draw{params.seed, out_index, largest, params.temperature, {-kInfinity, -1}, params.lowest()};
  return gumbel_argmax(x, vocab, scratch.maxima, draw, mask);
}

}  // namespace

struct Sampler::State {
  SlotParams params;
  bool penalises, remembers, is_plain;
  History history;
  std::vector<Stage> stages;

  explicit State(const SlotParams& p)
      : params(p),
        penalises(p.penalises()),
        remembers(penalises || longest_beginning(p) > 0),
        is_plain(is_usual(p)),
        history(penalises ? p.repeat_last_n : 0, longest_beginning(p)),
        stages(is_plain ? std::vector<Stage>{} : stages_of(p.samplers)) {}

  static size_t longest_beginning(const SlotParams& p) {
    size_t longest = 0;
    for (const auto& word : p.bad_words) longest = std::max(longest, word.size() - 1);
    return longest;
  }

  void see(int32_t token, bool is_output) {
    if (remembers) history.see(token, is_output);
  }

  bool restricts(const uint32_t* mask) const {
    return mask != nullptr || !params.allowed.empty() || !is_plain;
  }

  // Whether a masked row needs no copy: a token is kept or not by its own logit and the largest.
  bool reads_only(int64_t out_index) const {
    const SlotParams& p = params;
    const bool edits = penalises || !p.bad_words.empty() || !p.logit_bias.empty() || !p.allowed.empty() ||
                       out_index < p.min_tokens;
    return is_plain && !edits && p.temperature > 0 && p.top_k <= 0 && p.top_p >= 1;
  }

  // The row that may be changed: of its own where much is, so that the distribution that is reported stays.
  float* row(float* logits, int32_t vocab, const uint32_t* mask, std::vector<float>& own) const {
    if (!restricts(mask)) return logits;
    own.resize(static_cast<size_t>(vocab));
    const float* from = logits;
    for (const uint32_t* bits : {mask, params.allowed.empty() ? nullptr : params.allowed.data()}) {
      if (bits == nullptr) continue;
      mask_row(from, vocab, bits, own.data());
      from = own.data();
    }
    if (from == logits) std::copy(logits, logits + vocab, own.data());
    return own.data();
  }

  void penalise(Editor& logits, std::span<const int32_t> path, History::Changes& changes) const {
    if (!penalises) return;
    history.each(path, changes, [&](int32_t token, int32_t n) {
      logits.set(token, params.penalised(logits.get(token), n));
    });
  }

  void edit(Editor& logits, int64_t out_index, std::span<const int32_t> path) const {
    for (const auto& word : params.bad_words) {
      if (history.ends_with(std::span(word).first(word.size() - 1), path))
        logits.set(word.back(), -kInfinity);
    }
    for (const auto& [token, bias] : params.logit_bias) logits.set(token, logits.get(token) + bias);
    if (out_index < params.min_tokens) {
      for (int32_t token : params.stop_ids) logits.set(token, -kInfinity);
    }
  }

  // What is drawn from `x`, which is not the row that is reported; kNothingLeft when nothing can be.
  int32_t draw_staged(Editor& logits, float* x, int32_t vocab, int64_t out_index,
                      std::span<const int32_t> path, const Ending& ending, Scratch& scratch) const {
    Draw draw{params.seed, out_index, 0, 1, {-kInfinity, -1}, -kInfinity};
    Stages left(x, vocab, draw, scratch.selector, scratch.maxima, scratch.scores);
    for (Stage stage : stages) {
      if (stage == kPenaltyStage)
        penalise(logits, path, scratch.changes);
      else if (!left.apply(stage, params))
        return kNothingLeft;
    }
    if (!left.look()) return kNothingLeft;
    block_max(x, vocab, scratch.maxima);
    return ending(x, vocab, draw, scratch);
  }
};

Sampler::Sampler(int32_t max_slots, int32_t vocab, int32_t kept) : vocab_(vocab) {
  if (max_slots < 1 || vocab < 1)
    throw std::invalid_argument("a sampler needs at least one slot and one token");
  slots_.resize(static_cast<size_t>(max_slots));
  if (kept != 0) proposals_ = std::make_unique<Proposals>(max_slots, kept, vocab);
}

Sampler::~Sampler() = default;

void Sampler::open(int32_t slot, const SlotParams& params, std::span<const int32_t> prompt,
                   std::span<const int32_t> output) {
  check_params(params, vocab_);
  for (int32_t token : prompt) check_id(token, vocab_, "prompt token");
  for (int32_t token : output) check_id(token, vocab_, "output token");
  auto state = std::make_unique<State>(params);
  for (int32_t token : prompt) state->see(token, false);
  for (int32_t token : output) state->see(token, true);
  slots_.at(static_cast<size_t>(slot)) = std::move(state);
  if (proposals_) proposals_->forget(slot);
}

void Sampler::commit(int32_t slot, int32_t token) {
  check_id(token, vocab_, "committed token");
  const auto& state = slots_.at(static_cast<size_t>(slot));
  if (!state) throw std::invalid_argument("slot " + std::to_string(slot) + " was never opened");
  state->see(token, true);
}

Drawn Sampler::sample(int32_t slot, float* logits, int64_t out_index, std::span<const int32_t> path,
                      int32_t target, Maxima maxima, const uint32_t* mask, Role role) const {
  thread_local Scratch scratch;
  const auto& state = slots_.at(static_cast<size_t>(slot));
  if (!state) throw std::invalid_argument("slot " + std::to_string(slot) + " was never opened");
  for (int32_t token : path) check_id(token, vocab_, "path token");
  if (target >= 0) check_id(target, vocab_, "target token");
  const SlotParams& params = state->params;
  const Ending ending{mask ? nullptr : proposals_.get(), slot, role};  // a masked row is the target's alone
  if (proposals_ && role.drafts) proposals_->forget(slot, out_index);
  const RowMax raw = largest_of(logits, vocab_, maxima);
  if (raw.has_nan || raw.value == kInfinity || raw.value == -kInfinity) return {kNotFinite, 0, 0, {}, {}};
  if (target >= 0)
    return report(logits, vocab_, raw.value, target, std::max(params.n_prompt_logprobs, 0), {}, scratch);

  const bool reads_only = mask != nullptr && state->reads_only(out_index);
  float* x = reads_only ? logits : state->row(logits, vocab_, mask, scratch.row);
  Editor editor(x, scratch.saved);
  state->edit(editor, out_index, path);
  int32_t token = kNothingLeft;
  std::vector<int32_t> siblings;
  if (reads_only) {
    token = draw_masked(logits, vocab_, mask, params, out_index, scratch);
  } else if (!state->is_plain) {
    token = state->draw_staged(editor, x, vocab_, out_index, path, ending, scratch);
  } else {
    state->penalise(editor, path, scratch.changes);
    const bool is_raw = x == logits && !editor.changed();
    if (!is_raw) maxima = {};
    const float largest = is_raw ? raw.value : row_max(x, vocab_).value;
    if (largest > -kInfinity && params.temperature == 0) {
      token = first_largest(x, vocab_, largest, maxima);
      siblings = next_largest(x, vocab_, token, role.siblings);
    } else if (largest > -kInfinity) {
      Drawn drawn = draw_token(x, vocab_, largest, params, out_index, ending, scratch);
      token = drawn.token, siblings = std::move(drawn.siblings);
    }
  }
  if (role.drafts || token < 0 || params.n_logprobs < 0) return {token, 0, 0, {}, std::move(siblings)};
  editor.restore();
  return report(logits, vocab_, raw.value, token, params.n_logprobs, params.logprob_ids, scratch);
}

}  // namespace kvasir
