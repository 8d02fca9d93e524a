// A pool of threads that run one function together: spin a little, then park.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

namespace kvasir {

class Pool {
 public:
  using Cpus = std::vector<int>;
  // n_threads >= 1 counts the caller. cpus: those that each thread may use; empty: all that the process may.
  // The caller is bound while it runs only.
  explicit Pool(int n_threads, std::vector<Cpus> cpus = {});
  ~Pool();
  int size() const;
  // Runs fn(context, thread) once on each thread, the caller being thread 0; returns when all are done.
  void run(void (*fn)(void* context, int thread), void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
