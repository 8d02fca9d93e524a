#include <bit>

#include "sample/sampler.h"

namespace kvasir {

// A sum of well mixed (index, bits) pairs: any order of summing gives the same value. Odd multipliers from
// SplitMix64.
uint64_t hash_row(const float* row, int64_t n) {
  uint64_t sum = static_cast<uint64_t>(n);
  for (int64_t i = 0; i < n; ++i) {
    uint64_t x = (static_cast<uint64_t>(i) << 32 | std::bit_cast<uint32_t>(row[i])) + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    sum += x ^ (x >> 31);
  }
  return sum;
}

}  // namespace kvasir
