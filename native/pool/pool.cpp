#include "pool/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvasir {
namespace {

// Long enough to bridge the gap between two runs of one step, short enough to give an idle core back.
constexpr std::chrono::microseconds kSpin{50};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rounding to nearest, subnormals kept, whatever a library of the host process has set; restored at the end.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FloatMode() {}
#endif
};

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// 0, or an error code: CPUs can be taken from the process at any time.
int bind_thread(pthread_t thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  return pthread_setaffinity_np(thread, sizeof(set), &set);
}

void require_bound(int code) {
  if (code)
    throw std::system_error(code, std::generic_category(), "cannot bind a thread of the pool to its CPUs");
}

// Binds the calling thread for one run only: threads that the host starts later must not inherit the mask.
// Where that fails it stays as it is.
class BoundHere {
 public:
  explicit BoundHere(const std::vector<int>* cpus) {
    if (cpus == nullptr) return;
    code_ = pthread_getaffinity_np(pthread_self(), sizeof(saved_), &saved_);
    if (code_ == 0) code_ = bind_thread(pthread_self(), *cpus);
    active_ = code_ == 0;
  }
  ~BoundHere() {
    if (active_) pthread_setaffinity_np(pthread_self(), sizeof(saved_), &saved_);
  }
  int code() const { return code_; }

 private:
  bool active_ = false;
  int code_ = 0;
  cpu_set_t saved_;
};

}  // namespace

struct Pool::Impl {
  using Count = std::atomic<uint32_t>;

  const int n_threads;
  const pid_t process = getpid();
  const std::vector<int> allowed = allowed_cpus();
  const std::vector<Cpus> bound;  // per thread, or empty
  // More threads than CPUs: a spinning thread would only keep a working one from its CPU.
  const bool spins;
  std::vector<std::thread> workers;
  std::mutex running;
  std::mutex failing;
  std::exception_ptr failure;
  void (*fn)(void*, int) = nullptr;
  void* context = nullptr;
  bool stopping = false;
  // The CPU on which each thread began its last run.
  std::vector<std::atomic<int>> places;
  alignas(64) Count generation{0};
  alignas(64) Count n_busy{0};

  Impl(int n, std::vector<Cpus> cpus)
      : n_threads(n), bound(std::move(cpus)), spins(n <= n_cpus()), places(static_cast<size_t>(n)) {
    for (std::atomic<int>& place : places) place.store(-1, std::memory_order_relaxed);
    if (!bound.empty()) require_bound(BoundHere(&bound.front()).code());
    try {
      for (int i = 1; i < n; ++i) {
        workers.emplace_back([this, i] { work(i); });
        if (!bound.empty()) require_bound(bind_thread(workers.back().native_handle(), cpus_of(i)));
      }
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Impl() { stop(); }

  // That all threads have together.
  int n_cpus() const {
    std::set<int> all(allowed.begin(), allowed.end());
    if (!bound.empty()) all.clear();
    for (const Cpus& cpus : bound) all.insert(cpus.begin(), cpus.end());
    return int(all.size());
  }

  const Cpus& cpus_of(int thread) const {
    return bound.empty() ? allowed : bound[static_cast<size_t>(thread)];
  }

  void stop() {
    stopping = true;
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  // Returns once `value` differs from `old`: spins, then parks in the kernel.
  void await_change(const Count& value, uint32_t old) const {
    if (spins) {
      // The yield lets the awaited thread run should it sit on this very CPU.
      const auto end = std::chrono::steady_clock::now() + kSpin;
      do {
        for (int i = 0; i < 32; ++i) {
          if (value.load(std::memory_order_acquire) != old) return;
          relax();
        }
        std::this_thread::yield();
      } while (std::chrono::steady_clock::now() < end);
    }
    value.wait(old, std::memory_order_acquire);
  }

  bool is_taken(int cpu, int thread) const {
    for (int i = 0; i < n_threads; ++i)
      if (i != thread && places[static_cast<size_t>(i)].load(std::memory_order_relaxed) == cpu) return true;
    return false;
  }

  // Linux may wake a worker on the CPU of the busy thread that woke it and leave both there for a whole step,
  // half the machine idle (seen: one prefill of 145 ms in three took 290). Such a worker moves itself to a
  // CPU without a peer.
  void settle(int thread) {
    std::atomic<int>& place = places[static_cast<size_t>(thread)];
    place.store(sched_getcpu(), std::memory_order_relaxed);
    if (thread == 0 || !spins || !is_taken(place.load(std::memory_order_relaxed), thread)) return;
    for (int cpu : cpus_of(thread)) {
      if (is_taken(cpu, thread) || bind_thread(pthread_self(), {cpu}) != 0) continue;
      bind_thread(pthread_self(), cpus_of(thread));
      place.store(cpu, std::memory_order_relaxed);
      return;
    }
  }

  void call(int thread) noexcept {
    FloatMode mode;
    try {
      settle(thread);
      fn(context, thread);
    } catch (...) {
      std::lock_guard lock(failing);
      if (!failure) failure = std::current_exception();
    }
  }

  void work(int thread) {
    for (uint32_t seen = 0;; ++seen) {
      await_change(generation, seen);
      if (stopping) return;
      call(thread);
      if (n_busy.fetch_sub(1, std::memory_order_acq_rel) == 1) n_busy.notify_one();
    }
  }

  void run(void (*function)(void*, int), void* argument) {
    std::lock_guard lock(running);
    BoundHere here(bound.empty() ? nullptr : &bound.front());
    fn = function;
    context = argument;
    failure = nullptr;
    n_busy.store(static_cast<uint32_t>(n_threads - 1), std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    call(0);
    for (uint32_t left; (left = n_busy.load(std::memory_order_acquire)) != 0;) await_change(n_busy, left);
    if (failure) std::rethrow_exception(failure);
  }
};

Pool::Pool(int n_threads, std::vector<Cpus> cpus) {
  if (n_threads < 1 || n_threads > 1024) {
    throw std::invalid_argument("a pool has 1 to 1024 threads, not " + std::to_string(n_threads));
  }
  if (!cpus.empty() && cpus.size() != static_cast<size_t>(n_threads)) {
    throw std::invalid_argument("CPUs for " + std::to_string(cpus.size()) + " threads, the pool has " +
                                std::to_string(n_threads));
  }
  impl_ = std::make_unique<Impl>(n_threads, std::move(cpus));
}

// A child of fork has no threads to stop, and a lock may be held there for ever: it keeps its copy.
Pool::~Pool() {
  if (impl_->process != getpid()) static_cast<void>(impl_.release());
}

int Pool::size() const { return impl_->n_threads; }

void Pool::run(void (*fn)(void* context, int thread), void* context) {
  if (impl_->process != getpid())
    throw std::runtime_error("the threads of this pool are in process " + std::to_string(impl_->process) +
                             ": a fork has none of them");
  impl_->run(fn, context);
}

}  // namespace kvasir
