// The tokens of prompt and output that the draws of a slot depend on.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvasir {

// How often a token came, among those that are counted.
struct Count {
  int32_t seen = 0, outputs = 0;
};

class History {
 public:
  using Changes = std::vector<std::pair<int32_t, Count>>;

  // `window`: newest tokens that are counted, -1 all; `n_tail`: newest outputs that are remembered.
  History(int32_t window, size_t n_tail) : window_(window), n_tail_(n_tail) {}

  void see(int32_t token, bool is_output);
  // Whether `tokens`, at most n_tail, are the newest outputs; those of `path` follow the others.
  bool ends_with(std::span<const int32_t> tokens, std::span<const int32_t> path) const;

  // each(token, outputs) of every token that is counted when those of `path` have followed. `changes` is
  // scratch.
  template <class Each>
  void each(std::span<const int32_t> path, Changes& changes, Each each) const {
    change(path, changes);
    for (const auto& [token, count] : changes)
      if (count.seen > 0) each(token, count.outputs);
    for (const auto& [token, count] : counts_)
      if (!find(changes, token)) each(token, count.outputs);
  }

 private:
  // Counts of the tokens that come with `path`, and of those that leave the window for them.
  void change(std::span<const int32_t> path, Changes& changes) const;
  Count& changed(Changes& changes, int32_t token) const;
  static Count* find(Changes& changes, int32_t token);

  int32_t window_;
  size_t n_tail_;
  std::unordered_map<int32_t, Count> counts_;
  std::deque<std::pair<int32_t, bool>> recent_;  // tokens of a bounded window, and whether they are outputs
  std::vector<int32_t> tail_;
};

}  // namespace kvasir
