#pragma once
#include <cstdint>
#include <vector>

namespace kvasir {

// Floats that begin a cache line.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t n = 0) : memory_(size_t(n + 16)) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = reinterpret_cast<float*>((address + 63) / 64 * 64);
  }
  float* data() const { return data_; }

 private:
  std::vector<float> memory_;
  float* data_;  // moves along
};

}  // namespace kvasir
