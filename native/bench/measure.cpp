#include "bench/measure.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/peaks.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSeconds = 0.2;
constexpr std::size_t kChunkBytes = std::size_t{1}
                                    << 16;  // read between two looks at the clock: 1 us or more
constexpr long kChunkIterations = 20000;    // about 50 us of arithmetic

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Anonymous memory in huge pages where the system grants them, so that the read is not bound by page walks.
class Buffer {
 public:
  explicit Buffer(std::size_t n) : size_(n) {
    data_ = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    madvise(data_, n, MADV_HUGEPAGE);
  }
  ~Buffer() { munmap(data_, size_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  std::size_t size_;
};

// Binds the caller to the index-th CPU it may use; on failure the thread stays where the system puts it.
void pin(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int n = CPU_COUNT(&allowed);
  int wanted = index % std::max(n, 1);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

struct Span {
  double begin = 0, end = 0, work = 0;
};

// Runs body(index) -> work units per call on every thread at once until kSeconds have passed.
template <class Prepare, class Body>
double run(int n_threads, Prepare prepare, Body body) {
  std::vector<Span> spans(static_cast<std::size_t>(n_threads));
  std::atomic<int> waiting{n_threads};
  std::vector<std::thread> threads;
  for (int i = 0; i < n_threads; ++i) {
    threads.emplace_back([&, i] {
      pin(i);
      prepare(i);
      waiting.fetch_sub(1);
      while (waiting.load() > 0) std::this_thread::yield();
      Span span;
      span.begin = span.end = now();
      while (span.end - span.begin < kSeconds) {
        span.work += body(i);
        span.end = now();
      }
      spans[static_cast<std::size_t>(i)] = span;
    });
  }
  for (auto& thread : threads) thread.join();
  double begin = std::numeric_limits<double>::infinity(), end = 0, work = 0;
  for (const Span& span : spans) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
    work += span.work;
  }
  return work / (end - begin) / 1e9;
}

double measure_read(int n_threads, std::size_t n_bytes) {
  const auto n = static_cast<std::size_t>(n_threads);
  const std::size_t share = n_bytes / n / kChunkBytes * kChunkBytes;
  if (share == 0) throw std::invalid_argument("measure: \"read\" needs n_bytes >= 64 KiB per thread");
  Buffer buffer(share * n);
  std::vector<std::size_t> at(n, 0);
  std::atomic<std::uint64_t> sink{0};
  const auto read = peaks::best_read();
  const auto touch = [&](int i) {
    std::memset(buffer.data() + static_cast<std::size_t>(i) * share, i + 1, share);
  };
  const auto body = [&](int i) {
    std::size_t offset = at[static_cast<std::size_t>(i)];
    const std::size_t n_chunks = std::min<std::size_t>(share / kChunkBytes, 16);
    for (std::size_t c = 0; c < n_chunks; ++c) {
      sink.fetch_xor(read(buffer.data() + static_cast<std::size_t>(i) * share + offset, kChunkBytes),
                     std::memory_order_relaxed);
      offset = offset + kChunkBytes == share ? 0 : offset + kChunkBytes;
    }
    at[static_cast<std::size_t>(i)] = offset;
    return static_cast<double>(n_chunks * kChunkBytes);
  };
  return run(n_threads, touch, body);
}

double measure_peak(const peaks::Peak& peak, int n_threads) {
  if (peak.run == nullptr) return 0;
  std::atomic<std::uint64_t> sink{0};
  return run(
      n_threads, [](int) {},
      [&](int) {
        sink.fetch_xor(peak.run(kChunkIterations), std::memory_order_relaxed);
        return peak.ops * static_cast<double>(kChunkIterations);
      });
}

peaks::Peak best(const std::string& kind) {
  if (kind == "int8") return peaks::best_int8();
  if (kind == "bf16") return peaks::best_bf16();
  if (kind == "fp32") return peaks::best_fp32();
  throw std::invalid_argument("measure: unknown kind \"" + kind + "\"; one of read, int8, bf16, fp32");
}

}  // namespace

double measure(const std::string& kind, int n_threads, std::size_t n_bytes) {
  if (n_threads < 1) throw std::invalid_argument("measure: n_threads must be >= 1");
  if (kind == "read") return measure_read(n_threads, n_bytes);
  return measure_peak(best(kind), n_threads);
}

std::string measure_missing(const std::string& kind) {
  if (kind == "read") return "";
  const peaks::Peak peak = best(kind);
  return peak.run != nullptr ? "" : peak.needs;
}

}  // namespace kvasir
