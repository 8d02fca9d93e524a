// How items are shared among threads.
#pragma once
#include <cstdint>

namespace kvasir {

constexpr int64_t kItemsPerThread = 6;  // items are cut so that a preempted thread delays little

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Items [begin, end) of the `total` of a phase: the share i of n.
struct ItemRange {
  int64_t begin, end, total;
  ItemRange(int64_t i, int64_t n, int64_t items)
      : begin(items * i / n), end(items * (i + 1) / n), total(items) {}
  // The share that an item is in.
  static ItemRange around(int64_t item, int64_t n, int64_t items) {
    return {((item + 1) * n - 1) / items, n, items};
  }
};

}  // namespace kvasir
