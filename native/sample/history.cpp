#include "sample/history.h"

#include <algorithm>

namespace kvasir {

void History::see(int32_t token, bool is_output) {
  if (is_output && n_tail_ > 0) {
    if (tail_.size() == n_tail_) tail_.erase(tail_.begin());
    tail_.push_back(token);
  }
  if (window_ == 0) return;
  Count& count = counts_[token];
  count.seen++;
  count.outputs += is_output;
  if (window_ < 0) return;
  recent_.emplace_back(token, is_output);
  if (recent_.size() <= static_cast<size_t>(window_)) return;
  const auto [oldest, was_output] = recent_.front();
  recent_.pop_front();
  const auto left = counts_.find(oldest);
  left->second.outputs -= was_output;
  if (--left->second.seen == 0) counts_.erase(left);
}

bool History::ends_with(std::span<const int32_t> tokens, std::span<const int32_t> path) const {
  const size_t n_path = std::min(tokens.size(), path.size()), n_tail = tokens.size() - n_path;
  return n_tail <= tail_.size() &&
         std::equal(tokens.end() - static_cast<int64_t>(n_path), tokens.end(),
                    path.end() - static_cast<int64_t>(n_path)) &&
         std::equal(tokens.begin(), tokens.begin() + static_cast<int64_t>(n_tail),
                    tail_.end() - static_cast<int64_t>(n_tail));
}

void History::change(std::span<const int32_t> path, Changes& changes) const {
  changes.clear();
  size_t n_left = 0;
  if (window_ >= 0) {
    const auto window = static_cast<size_t>(window_);
    path = path.last(std::min(path.size(), window));
    n_left = recent_.size() - std::min(recent_.size(), window - path.size());
  }
  for (int32_t token : path) {
    Count& count = changed(changes, token);
    count.seen++;
    count.outputs++;
  }
  for (size_t i = 0; i < n_left; ++i) {
    Count& count = changed(changes, recent_[i].first);
    count.seen--;
    count.outputs -= recent_[i].second;
  }
}

Count& History::changed(Changes& changes, int32_t token) const {
  if (Count* known = find(changes, token)) return *known;
  const auto counted = counts_.find(token);
  return changes.emplace_back(token, counted == counts_.end() ? Count{} : counted->second).second;
}

Count* History::find(Changes& changes, int32_t token) {
  const auto is_it = [=](const auto& change) { return change.first == token; };
  const auto found = std::find_if(changes.begin(), changes.end(), is_it);
  return found == changes.end() ? nullptr : &found->second;
}

}  // namespace kvasir
