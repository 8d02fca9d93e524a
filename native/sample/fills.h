// The masks of a step: brought by who started it, while it runs, or made by its threads between its items,
// through a grammar library's C interface. While one makes a mask it holds no item, so that the others go on;
// a thread beside them would be put in the place of one that holds an item, for which all wait.
#pragma once
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels.h"

namespace kvasir {

// Of a logit row: it has no mask, waits for it, has it.
KVASIR_ENUM(MaskFlag, none, coming, here);

// A mask to make: what the library's functions are and are given.
struct Fill {
  int32_t (*consume)(void* matcher, uint32_t token);
  int32_t (*mask)(void* matcher, uint32_t* bits, size_t n_bytes);  // both: 0, or the matcher is worth nothing
  void (*cancel)(const void* handle);                              // any thread
  void* matcher;
  const void* handle;
  std::vector<uint32_t> tokens;  // that come before
  int64_t row;
};

// Nobody has begun it, it is there, or the library gave up.
KVASIR_ENUM(FillState, waiting, made, refused);

struct Filled {
  FillState state = FillState::waiting;
  bool cancelled = false;  // its matcher is worth nothing, whatever the state
  int32_t only = -1;       // the one token that the mask allows; -1: there are others, or none
  double seconds = 0;
  double cpu_seconds = 0;
};

class Fills {
 public:
  using Clock = std::chrono::steady_clock;
  // Of `rows` logit rows those of `waiting` get a mask of `words` words; of the others no memory is touched.
  // Throws std::out_of_range.
  Fills(int64_t rows, std::span<const int64_t> waiting, int64_t words);
  int64_t rows() const { return rows_; }
  int64_t words() const { return words_; }
  uint32_t* bits(int64_t row) { return bits_.get() + row * words_; }
  std::atomic<int32_t>& flag(int64_t row) { return flags_[size_t(row)]; }  // a MaskFlag
  // Brings a mask. False: the row waits for none. One caller at a time.
  bool bring(int64_t row, const uint32_t* bits);
  // Rows that still wait may draw nothing. One caller at a time.
  void abandon();
  // Once, while the step may be running. A row whose library gives up may draw nothing.
  void put(std::vector<Fill> fills);
  // Makes one that nobody has begun; false: there is none. Threads of the step call it between items.
  bool help();
  // What came of each. After `all`, nobody begins one any more; one that takes longer than `each` is
  // cancelled, where it is its thread that works so long: of one that another process keeps from its core
  // nothing is known. Returns when none is under way.
  std::vector<Filled> wait(Clock::duration all, Clock::duration each);

 private:
  struct Own {
    Fill fill;
    Filled filled;
    clockid_t clock{};              // of the processor's time that its thread takes
    std::atomic<int64_t> began{0};  // by that clock, in nanoseconds; 0: it is not under way
  };
  void make(Own& one);
  void cancel_slow(Clock::duration each);

  const int64_t rows_, words_;
  const std::unique_ptr<uint32_t[]> bits_;
  const std::unique_ptr<std::atomic<int32_t>[]> flags_;
  std::unique_ptr<Own[]> fills_;
  std::atomic<int64_t> n_{0};     // that were put
  std::atomic<int64_t> next_{0};  // to begin; behind n: none
  std::mutex ending_;
  std::condition_variable ended_;
  int64_t n_ended_ = 0;
};

}  // namespace kvasir
