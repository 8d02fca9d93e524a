#include "sample/masks.h"

#include <immintrin.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace kvasir {
namespace {

constexpr int kSpins = 1000;                   // tens of microseconds
constexpr std::chrono::microseconds kNap{50};  // leaves the core to who makes the mask

}  // namespace

const uint32_t* StepMasks::wait(int64_t row) const {
  const std::atomic<int32_t>& flag = fills->flag(row);
  if (flag.load(std::memory_order_relaxed) == int32_t(MaskFlag::none)) return nullptr;
  for (int spins = 0; flag.load(std::memory_order_acquire) == int32_t(MaskFlag::coming); spins++) {
    if (help()) continue;
    if (spins < kSpins) {
      _mm_pause();
      continue;
    }
    if (std::chrono::steady_clock::now() >= until)
      throw std::runtime_error("the mask of logit row " + std::to_string(row) + " did not come");
    std::this_thread::sleep_for(kNap);
  }
  return fills->bits(row);
}

}  // namespace kvasir
