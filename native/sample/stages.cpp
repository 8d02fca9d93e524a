#include "sample/stages.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "sample/numerics.h"
#include "sample/sampler.h"

namespace kvasir {

enum class Stage : int32_t { kPenalties, kTemperature, kMinP, kTopK, kTopP, kTypical };
static_assert(Stage::kPenalties == kPenaltyStage);

namespace {

constexpr std::array kNames = {"penalties", "temperature", "min_p", "top_k", "top_p", "typ_p"};
constexpr int32_t kEveryId = std::numeric_limits<int32_t>::max();

}  // namespace

std::vector<Stage> stages_of(std::span<const std::string> names) {
  std::vector<Stage> stages;
  for (const std::string& name : names) {
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found == kNames.end()) throw std::invalid_argument("there is no sampler " + name);
    stages.push_back(static_cast<Stage>(found - kNames.begin()));
  }
  if (stages.empty())
    for (size_t i = 0; i < kNames.size(); ++i) stages.push_back(static_cast<Stage>(i));
  return stages;
}

bool is_usual(const SlotParams& params) { return params.samplers.empty() && params.typical_p >= 1; }

float SlotParams::lowest() const {
  return min_p >= std::numeric_limits<float>::min() ? natural_log(min_p) : -kInfinity;
}

bool Stages::look() {
  draw_.largest = row_max(x_, n_).value;
  return draw_.largest > -kInfinity;
}

bool Stages::apply(Stage stage, const SlotParams& params) {
  if (!look()) return false;
  if (stage == Stage::kTemperature && params.temperature > 0) draw_.temperature = params.temperature;
  if (stage == Stage::kTemperature && params.temperature == 0) greedy();
  if (stage == Stage::kMinP && params.lowest() > -kInfinity) least(params.lowest());
  if (stage == Stage::kTypical && params.typical_p < 1) typical(params.typical_p);
  if (stage == Stage::kTopK && params.top_k > 0) {
    block_max(x_, n_, maxima_);
    keep(x_, selector_.top_k(x_, n_, maxima_, params.top_k));
  }
  if (stage == Stage::kTopP && params.top_p < 1) {
    block_max(x_, n_, maxima_);
    keep(x_, selector_.top_p(x_, n_, maxima_, draw_, params.top_p));
  }
  return true;
}

void Stages::greedy() {
  const int32_t best = first_equal(x_, n_, draw_.largest);
  std::fill(x_, x_ + n_, -kInfinity);
  x_[best] = draw_.largest;
}

void Stages::least(float lowest) {
  scores_.resize(static_cast<size_t>(n_));
  scale_row(x_, n_, draw_, scores_.data());
  keep(scores_.data(), {lowest, kEveryId});
}

void Stages::typical(float share) {
  uint64_t mass = 0, terms = 0;
  sum_terms(x_, n_, draw_, mass, terms);
  const auto mean = static_cast<float>(static_cast<double>(terms) / static_cast<double>(mass));
  scores_.resize(static_cast<size_t>(n_));
  distance_row(x_, n_, draw_, mean, scores_.data());
  block_max(scores_.data(), n_, maxima_);
  keep(scores_.data(), selector_.typical(scores_.data(), x_, n_, maxima_, draw_, share));
}

void Stages::keep(const float* scores, Border border) { keep_row(scores, n_, border, x_); }

}  // namespace kvasir
