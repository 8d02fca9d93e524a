// How the items of a phase are shared among the threads.
#include <immintrin.h>

#include <algorithm>
#include <chrono>

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
  const auto run_phases = [&](int64_t begin, int64_t end, const Extent& e) {
    for (int64_t phase = begin; phase < end; phase++) {
      run_phase(phase, e, thread, *counter++, ahead);
      if (seconds_ == nullptr || thread != 0) continue;
      const double t = now();
      seconds_[phase] += t - mark;
      mark = t;
    }
  };
  run_phases(0, first_tail_, {size_.tokens, size_.seqs});
  const int64_t tile = workspace_.spec.logits_tile;
  for (int64_t r = 0; r < size_.logits; r += tile)
    run_phases(first_tail_, phases(), {size_.tokens, size_.seqs, r, std::min(tile, size_.logits - r)});
}

int64_t Program::phase_items(const Phase& phase, const Extent& e) const {
  int64_t n = 0;
  for (int64_t i = phase.begin; i < phase.end; i++) n += items(ops_[size_t(i)], e);
  return n;
}

// A linear of few rows is bound by memory: each thread reads one run of weights from end to end. A step of
// one row takes 11 to 14 % less than with items that threads take in turns, one of 8 rows 5 to 14 %; linears
// side by side, as those of queries, keys and values, take a quarter less of one row (Zen 4). In attention a
// thread that knows its next item fetches for it: a step of 64 rows of 190 tokens takes 4 to 7 % less (Zen 5,
// two threads).
int64_t Program::shares(const Phase& phase, const Extent& e) const {
  return phase.attends || (phase.linear && phase.linear->has_few_rows(e)) ? n_threads_ : 1;
}

// A phase ends when its items are done, not when all threads have arrived: a thread that another process
// keeps from its core delays the others only while it holds an item. A waiting thread soon sleeps, because
// the core that it leaves idle is where the scheduler can move the one that was preempted.
void Program::run_phase(int64_t phase, const Extent& e, int thread, Counter& counter, Ahead& ahead) {
  const Phase& range = phases_[size_t(phase)];
  if (until_ >= 0 && range.begin > until_) return;
  if (piece_.phase >= 0 && piece_.phase != phase) return;
  while (workspace_.masks.help()) continue;
  const int64_t all = phase_items(range, e), first = all * piece_.part / piece_.parts;
  const int64_t total = all * (piece_.part + 1) / piece_.parts - first, n = shares(range, e);
  for (int64_t k = 0; k < n; k++) {  // its own share, then what others have left of theirs
    const int64_t i = (thread + k) % n;
    run_items(range, e, thread, first, {i, n, total}, counter, counter.shares[i]);
  }
  look_ahead(phase, e, thread, ahead);
  for (int spins = 0; counter.done.load(std::memory_order_acquire) < total; spins++) {
    if (ahead.at < ahead.end)
      ahead.fetch();
    else if (workspace_.masks.help())
      spins = 0;
    else if (spins < kSpins)
      _mm_pause();
    else if (const int32_t done = counter.done.load(std::memory_order_acquire); done < total)
      counter.done.wait(done, std::memory_order_acquire);
  }
}

// Items of `range`, counted from `first`.
void Program::run_items(const Phase& phase, const Extent& e, int thread, int64_t first,
                        const ItemRange& range, Counter& counter, Share& share) {
  int64_t base = -first, op = phase.begin;
  // looked at first, so that threads which find nothing left do not take the line from each other
  while (share.next.load(std::memory_order_relaxed) < range.end - range.begin) {
    const int64_t item = range.begin + share.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= range.end) break;
    for (int64_t n; item >= base + (n = items(ops_[size_t(op)], e)); op++) base += n;
    try_item(ops_[size_t(op)], e, item - base, thread);
    if (counter.done.fetch_add(1, std::memory_order_acq_rel) == range.total - 1) counter.done.notify_all();
  }
}

void Program::try_item(const Op& op, const Extent& e, int64_t item, int thread) {
  try {
    run_item(op, e, item, thread);
  } catch (...) {
    const std::scoped_lock lock(failed_);
    if (!failure_) failure_ = std::current_exception();
  }
}

// What a thread that waits asks for meanwhile: the weights at the start of its next share. Memory would be
// idle during norms, rotations and attention, and each linear would start slowly (2 % of a step of one row).
void Program::look_ahead(int64_t phase, const Extent& e, int thread, Ahead& ahead) const {
  if (ahead.phase > phase || n_threads_ == 1) return;
  int64_t next = phase + 1;
  const auto is_next = [&](const Linear* linear) { return linear && linear->has_few_rows(e); };
  while (next < phases() && !is_next(phases_[size_t(next)].linear)) next++;
  ahead = {next};
  if (next == phases()) return;
  const Bytes share = start_of_share(phases_[size_t(next)], e, thread);
  ahead = {next, share.begin, std::min(share.begin + kAheadBytes, share.end)};
}

// Of a phase of linears of few rows: what the thread's share has of the linear that it begins with.
Bytes Program::start_of_share(const Phase& phase, const Extent& e, int thread) const {
  const ItemRange share(thread, n_threads_, phase_items(phase, e));
  int64_t base = 0, op = phase.begin, n;
  while (share.begin >= base + (n = items(ops_[size_t(op)], e)) && op + 1 < phase.end) base += n, op++;
  return std::get<Linear>(ops_[size_t(op)]).bytes_of(e, share.begin - base, std::min(share.end - base, n));
}

void Program::Ahead::fetch() {
  for (int i = 0; i < kLinesAtOnce; i++, at += 64) __builtin_prefetch(at, 0, 2);
}

}  // namespace kvasir
