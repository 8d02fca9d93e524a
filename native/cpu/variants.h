// The variants of the linear kernels, and the classes of rows that each is chosen for. They all give equal
// bits; which is fastest depends on CPU, memory and matrix, so it is measured (exec/cpu/tuning.py).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels.h"

namespace kvasir {

// Rows of a step, in classes; each ends with one of these, the last has no end.
constexpr int64_t kRowClassEnds[] = {1, 4, 8, 16, 64};
constexpr int kRowClasses = int(sizeof(kRowClassEnds) / sizeof(kRowClassEnds[0])) + 1;

constexpr int row_class(int64_t rows) {
  int found = 0;
  for (int64_t end : kRowClassEnds) found += rows > end;
  return found;
}

struct Variant {
  const char* name;  // what files keep: one that means something else later needs another
  Form form;
  int first, last;  // classes that it may be chosen for
  LinearShape shape;
  int32_t items;  // of a thread (share.h)
};

// The first is what is used where nothing was measured.
std::span<const Variant> variants();

// Those that kernels have for a layout and a class of rows, by number; the first is 0.
std::vector<int> variants_for(const Kernels& kernels, Layout layout, int row_class);

}  // namespace kvasir
