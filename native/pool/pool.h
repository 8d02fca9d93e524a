// A pool of threads that run one function together: spin a little, then park.
#pragma once
#include <cstdint>
#include <memory>

namespace kvasir {

class Pool {
 public:
  // n_threads >= 1 counts the caller. pin: thread i stays on the i-th allowed CPU.
  Pool(int n_threads, bool pin);
  ~Pool();
  int size() const;
  // Runs fn(context, thread) once on each thread, the caller being thread 0; returns when all are done.
  void run(void (*fn)(void* context, int thread), void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
