// A reusable barrier for threads that arrive within microseconds of each other: spin a little, then sleep.
// Sleeping matters when another process runs on one of our cores: the core that is left idle lets the
// scheduler move the peer that was preempted there, instead of waiting for its next time slice.
#pragma once
#include <immintrin.h>

#include <atomic>

namespace kvasir {

class Barrier {
 public:
  explicit Barrier(int n) : n_(n) {}

  void wait() {
    const int generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.store(generation + 1, std::memory_order_release);
      generation_.notify_all();
      return;
    }
    for (int spins = 0; spins < kSpins; spins++) {
      if (generation_.load(std::memory_order_acquire) != generation) return;
      _mm_pause();
    }
    generation_.wait(generation, std::memory_order_acquire);
  }

 private:
  static constexpr int kSpins = 1000;  // tens of microseconds
  const int n_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

}  // namespace kvasir
