// How the items of a phase are shared among the threads.
#include <immintrin.h>

#include <algorithm>
#include <chrono>

#include "cpu/pack.h"
#include "program/program.h"

namespace kvasir {
namespace {

constexpr int kSpins = 1000;  // tens of microseconds
constexpr int64_t kAheadBytes = 64 << 10;
constexpr int kLinesAtOnce = 4;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void Program::enter(void* self, int thread) { static_cast<Program*>(self)->replay(thread); }

void Program::replay(int thread) {
  double mark = seconds_ && thread == 0 ? now() : 0;
  auto counter = counters_.begin();
  Ahead ahead;
  const auto step = [&](int64_t phase, const Tile& tile) {
    run_phase(phase, tile, thread, *counter++, ahead);
    if (seconds_ == nullptr || thread != 0) return;
    const double t = now();
    seconds_[phase] += t - mark;
    mark = t;
  };
  for (int64_t p = 0; p < first_tail_; p++) step(p, {});
  for (int64_t r = 0; r < size_.logits; r += spec_.logits_tile)
    for (int64_t p = first_tail_; p < n_phases_; p++)
      step(p, {r, std::min(spec_.logits_tile, size_.logits - r)});
}

int64_t Program::phase_items(const Phase& phase, const Tile& tile) const {
  int64_t n = 0;
  for (int64_t r = phase.begin; r < phase.end; r++) n += items(spec_.records[size_t(r)], tile);
  return n;
}

bool Program::is_linear_of_few_rows(const Phase& phase, const Tile& tile) const {
  const Record& r = spec_.records[size_t(phase.begin)];
  const bool alone = phase.end == phase.begin + 1;
  return alone && OpKind(r.kind) == OpKind::linear && rows(r, tile) <= kLinearRows;
}

// A linear of few rows is bound by memory: each thread reads one run of weights from end to end. A step of
// one row takes 11 to 14 % less than with items that threads take in turns, one of 8 rows 5 to 14 %. In
// attention a thread that knows its next item fetches for it: a step of 64 rows of 190 tokens takes 4 to 7 %
// less (Zen 5, two threads).
int64_t Program::shares(const Phase& phase, const Tile& tile) const {
  const bool attends = OpKind(spec_.records[size_t(phase.begin)].kind) == OpKind::attention;
  return attends || is_linear_of_few_rows(phase, tile) ? pool_.size() : 1;
}

// A phase ends when its items are done, not when all threads have arrived: a thread that another process
// keeps from its core delays the others only while it holds an item. A waiting thread soon sleeps, because
// the core that it leaves idle is where the scheduler can move the one that was preempted.
void Program::run_phase(int64_t phase, const Tile& tile, int thread, Counter& counter, Ahead& ahead) {
  const Phase& range = phases_[size_t(phase)];
  if (until_ >= 0 && range.begin > until_) return;
  const int64_t total = phase_items(range, tile), n = shares(range, tile);
  for (int64_t k = 0; k < n; k++) {  // its own share, then what others have left of theirs
    const int64_t i = (thread + k) % n;
    run_items(range, tile, thread, {i, n, total}, counter, counter.shares[i]);
  }
  look_ahead(phase, tile, thread, ahead);
  for (int spins = 0; counter.done.load(std::memory_order_acquire) < total; spins++) {
    if (ahead.at < ahead.end)
      ahead.fetch();
    else if (spins < kSpins)
      _mm_pause();
    else if (const int32_t done = counter.done.load(std::memory_order_acquire); done < total)
      counter.done.wait(done, std::memory_order_acquire);
  }
}

void Program::run_items(const Phase& phase, const Tile& tile, int thread, const ItemRange& items,
                        Counter& counter, Share& share) {
  int64_t base = 0, record = phase.begin;
  // looked at first, so that threads which find nothing left do not take the line from each other
  while (share.next.load(std::memory_order_relaxed) < items.end - items.begin) {
    const int64_t item = items.begin + share.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= items.end) break;
    for (int64_t n; item >= base + (n = this->items(spec_.records[size_t(record)], tile)); record++)
      base += n;
    try_item(spec_.records[size_t(record)], tile, item - base, thread);
    if (counter.done.fetch_add(1, std::memory_order_acq_rel) == items.total - 1) counter.done.notify_all();
  }
}

void Program::try_item(const Record& r, const Tile& tile, int64_t item, int thread) {
  try {
    run_item(r, tile, item, thread);
  } catch (...) {
    const std::scoped_lock lock(failed_);
    if (!failure_) failure_ = std::current_exception();
  }
}

// What a thread that waits asks for meanwhile: the weights at the start of its next share. Memory would be
// idle during norms, rotations and attention, and each linear would start slowly (2 % of a step of one row).
void Program::look_ahead(int64_t phase, const Tile& tile, int thread, Ahead& ahead) const {
  const int64_t n = pool_.size();
  if (ahead.phase > phase || n == 1) return;
  int64_t next = phase + 1;
  while (next < n_phases_ && !is_linear_of_few_rows(phases_[size_t(next)], tile)) next++;
  ahead = {next};
  if (next == n_phases_) return;
  const Record& r = spec_.records[size_t(phases_[size_t(next)].begin)];
  const Weight& w = spec_.weights[size_t(r.weight[0])];
  const int64_t per_item = tiles_per_item(r, w.tiles, 1), bytes = tile_bytes(w.layout, w.K);
  const ItemRange items(thread, n, ceil_div(w.tiles, per_item));
  const uint8_t* begin = w.data + items.begin * per_item * bytes;
  const uint8_t* end = w.data + std::min(items.end * per_item, w.tiles) * bytes;
  ahead = {next, begin, std::min(begin + kAheadBytes, end)};
}

void Program::Ahead::fetch() {
  for (int i = 0; i < kLinesAtOnce; i++, at += 64) __builtin_prefetch(at, 0, 2);
}

}  // namespace kvasir
