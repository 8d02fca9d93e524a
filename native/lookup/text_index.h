// Where a text has had its newest tokens before, by hash chains: kvasir/speculate/text.py, natively.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace kvasir {

struct TextMatch {
  int64_t end = 0, length = 0;
};

// Tokens are read through an accessor, `int32_t operator()(int64_t)`: the caller holds them.
class TextIndex {
 public:
  static constexpr int64_t kMaxKey = 5, kMaxTried = 16, kFirstSize = 256;

  explicit TextIndex(int64_t n_key) : n_key_(n_key) {
    if (n_key < 1 || n_key > kMaxKey) throw std::invalid_argument("keys have 1 to 5 tokens");
    clear(kFirstSize);
  }

  // Takes the tokens before `end`, at most `n_most`; how many these were. Where the table grows, it begins
  // again with the first.
  template <class Tokens>
  int64_t read(const Tokens& tokens, int64_t end, int64_t n_most) {
    if (end > int64_t(newest_.size())) grow(end);
    const int64_t first = n_read_, stop = std::min(end, n_read_ + n_most);
    for (int64_t place = n_read_ + 1; place <= stop; place++) {
      int32_t& newest = newest_[at(tokens, place)];
      before_.push_back(newest);
      newest = int32_t(place);
    }
    n_read_ = std::max(first, stop);
    return n_read_ - first;
  }

  bool has_read(int64_t end) const { return n_read_ >= end || end < n_key_; }

  // The longest place, of those that are tried, that ends as the `n_tail` tokens of `tail` do, but for the
  // very end of the `n` tokens; the newest of equally long ones. Of at most `n_most` tokens.
  template <class Tokens, class Tail>
  TextMatch match(const Tokens& tokens, int64_t n, const Tail& tail, int64_t n_tail, int64_t n_most) const {
    TextMatch found;
    if (n_tail < n_key_) return found;
    int64_t place = newest_[at(tail, n_tail)];
    for (int64_t i = 0; i < kMaxTried && place; i++, place = before_[size_t(place)]) {
      if (place >= n) continue;
      const int64_t most = std::min({n_most, place, n_tail});
      int64_t length = 0;
      while (length < most && tokens(place - 1 - length) == tail(n_tail - 1 - length)) length++;
      if (length > found.length) found = {place, length};
      if (found.length == n_most) break;
    }
    return found.length >= n_key_ ? found : TextMatch{};
  }

  int64_t bytes() const { return int64_t(4 * (newest_.capacity() + before_.capacity())); }

 private:
  static constexpr std::array<uint32_t, kMaxKey> kFactors = {0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F,
                                                             0x165667B1};

  // Of the key that ends before `place`, its entry of the table.
  template <class Tokens>
  size_t at(const Tokens& tokens, int64_t place) const {
    uint32_t hash = 0;
    for (int64_t i = 0; i < n_key_; i++)
      hash += (uint32_t(tokens(place - n_key_ + i)) + 1) * kFactors[size_t(i)];
    return hash >> shift_;
  }

  void grow(int64_t n_places) {
    int64_t size = 1;
    while (size < std::max(n_places, 2 * int64_t(newest_.size()))) size *= 2;
    clear(size);
  }

  void clear(int64_t size) {
    if (size > int64_t(1) << 30) throw std::length_error("a text of more than 2^30 tokens");
    newest_.assign(size_t(size), 0);
    before_.assign(size_t(n_key_), 0);
    before_.reserve(size_t(size));
    n_read_ = n_key_ - 1;
    shift_ = 32;
    while (size > 1) size /= 2, shift_--;
  }

  const int64_t n_key_;
  int64_t n_read_ = 0;
  int shift_ = 0;
  std::vector<int32_t> newest_;  // by hash the newest place behind such a key; 0: none
  std::vector<int32_t> before_;  // by place the one before it of the same hash
};

}  // namespace kvasir
