#include "sample/fills.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace kvasir {
namespace {

// How often it is looked for one that takes too long, in the time that it may take.
constexpr int kLooks = 4;

double seconds(Fills::Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// 0 where the clock's thread has ended.
int64_t nanoseconds(clockid_t clock) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) return 0;
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

int32_t only_bit(const uint32_t* bits, int64_t words) {
  int32_t found = -1;
  for (int64_t i = 0; i < words; i++) {
    if (bits[i] == 0) continue;
    if (found >= 0 || !std::has_single_bit(bits[i])) return -1;
    found = int32_t(32 * i) + std::countr_zero(bits[i]);
  }
  return found;
}

}  // namespace

Fills::Fills(int64_t rows, std::span<const int64_t> waiting, int64_t words)
    : rows_(rows),
      words_(words),
      bits_(std::make_unique_for_overwrite<uint32_t[]>(size_t(rows * words))),
      flags_(std::make_unique<std::atomic<int32_t>[]>(size_t(rows))) {
  for (int64_t row : waiting) {
    if (row < 0 || row >= rows) throw std::out_of_range("no such logit row");
    flag(row) = int32_t(MaskFlag::coming);
  }
}

bool Fills::bring(int64_t row, const uint32_t* mask) {
  if (row < 0 || row >= rows_ || flag(row) != int32_t(MaskFlag::coming)) return false;
  std::copy_n(mask, words_, bits(row));
  flag(row).store(int32_t(MaskFlag::here), std::memory_order_release);
  return true;
}

void Fills::abandon() {
  const std::vector<uint32_t> nothing(size_t(words_), 0);
  for (int64_t row = 0; row < rows_; row++) bring(row, nothing.data());
}

void Fills::put(std::vector<Fill> fills) {
  if (fills_) throw std::invalid_argument("the masks of this step have been asked for");
  fills_ = std::make_unique<Own[]>(fills.size());
  for (size_t i = 0; i < fills.size(); i++) fills_[i].fill = std::move(fills[i]);
  n_.store(int64_t(fills.size()), std::memory_order_release);
}

bool Fills::help() {
  // looked at first, so that threads which find nothing do not take the line from each other
  const int64_t n = n_.load(std::memory_order_acquire);
  if (next_.load(std::memory_order_relaxed) >= n) return false;
  const int64_t i = next_.fetch_add(1, std::memory_order_acq_rel);
  if (i >= n) return false;
  make(fills_[size_t(i)]);
  return true;
}

void Fills::make(Own& one) {
  const auto began = Clock::now();
  if (pthread_getcpuclockid(pthread_self(), &one.clock) != 0) one.clock = CLOCK_THREAD_CPUTIME_ID;
  const int64_t cpu = nanoseconds(one.clock);
  one.began.store(cpu, std::memory_order_release);
  const Fill& fill = one.fill;
  uint32_t* own = bits(fill.row);
  std::fill_n(own, words_, 0);
  const bool follows = std::all_of(fill.tokens.begin(), fill.tokens.end(),
                                   [&](uint32_t token) { return fill.consume(fill.matcher, token) == 0; });
  const bool made = follows && fill.mask(fill.matcher, own, size_t(words_) * sizeof(uint32_t)) == 0;
  if (!made) std::fill_n(own, words_, 0);
  Filled& filled = one.filled;
  filled.only = only_bit(own, words_);
  filled.cpu_seconds = 1e-9 * double(nanoseconds(one.clock) - cpu);
  filled.seconds = seconds(Clock::now() - began);
  filled.state = made ? FillState::made : FillState::refused;
  flag(fill.row).store(int32_t(MaskFlag::here), std::memory_order_release);
  const std::lock_guard lock(ending_);
  one.began.store(0, std::memory_order_relaxed);
  n_ended_++;
  ended_.notify_one();
}

std::vector<Filled> Fills::wait(Clock::duration all, Clock::duration each) {
  const auto end = Clock::now() + all;
  int64_t n_begun = n_.load(std::memory_order_relaxed);
  bool open = true;
  std::unique_lock lock(ending_);
  while (n_ended_ < n_begun) {
    const auto now = Clock::now();
    if (open && now >= end) {
      open = false;
      n_begun = std::min(n_begun, next_.exchange(n_begun, std::memory_order_acq_rel));
      continue;
    }
    cancel_slow(each);
    ended_.wait_until(lock, open ? std::min(end, now + each / kLooks) : now + each / kLooks,
                      [&] { return n_ended_ == n_begun; });
  }
  std::vector<Filled> found;
  for (int64_t i = 0; i < n_.load(std::memory_order_relaxed); i++) found.push_back(fills_[size_t(i)].filled);
  return found;
}

void Fills::cancel_slow(Clock::duration each) {
  for (int64_t i = 0; i < n_.load(std::memory_order_relaxed); i++) {
    Own& one = fills_[size_t(i)];
    const int64_t began = one.began.load(std::memory_order_acquire);
    if (began == 0 || one.filled.cancelled) continue;
    if (std::chrono::nanoseconds(nanoseconds(one.clock) - began) < each) continue;
    one.fill.cancel(one.fill.handle);
    one.filled.cancelled = true;
  }
}

}  // namespace kvasir
