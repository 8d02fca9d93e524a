// A reusable barrier for threads that arrive within microseconds of each other; yields when a peer is held up.
#pragma once
#include <immintrin.h>
#include <sched.h>

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
      return;
    }
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; spins++) {
      if (spins < 4000)
        _mm_pause();
      else
        sched_yield();
    }
  }

 private:
  const int n_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> generation_{0};
};

}  // namespace kvasir
