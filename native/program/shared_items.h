// How attention of rows that share blocks is cut into items: as few as bring each KV head into few caches, of
// equal work for all threads.
#pragma once
#include <cstdint>
#include <vector>

#include "program/shared_rows.h"

namespace kvasir {

constexpr int32_t kSharedRows = 16;  // of one item, at most

class SharedItems {
 public:
  // Places [begin, end) of the rows' tokens against one KV head; none where they are equal.
  struct Item {
    int32_t run, begin, end, kv_head;
  };

  SharedItems(int32_t n_kv_heads, int64_t n_threads) : n_kv_heads_(n_kv_heads), shares_(size_t(n_threads)) {}
  // Once a step.
  void begin(const SharedRows& rows, const int32_t* pos);

  int32_t n_kv_heads() const { return n_kv_heads_; }
  int64_t size() const { return int64_t(items_.size()); }
  const Item& operator[](int64_t i) const { return items_[size_t(i)]; }

 private:
  void add(const SharedRows& rows, int64_t run, const int32_t* pos);

  const int32_t n_kv_heads_;
  std::vector<std::vector<Item>> shares_;
  std::vector<Item> items_;  // as many of each share
  std::vector<int64_t> work_;
};

}  // namespace kvasir
