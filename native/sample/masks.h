// The masks of a step: written by who started it, while it runs.
#pragma once
#include <chrono>
#include <cstdint>

#include "kernels.h"
#include "sample/fills.h"

namespace kvasir {

// Of a logit row: it has no mask, waits for it, has it.
KVASIR_ENUM(MaskFlag, none, coming, here);

struct StepMasks {
  const uint32_t* bits = nullptr;  // [R, words]
  int32_t* ready = nullptr;        // MaskFlag [R]; null: no row of the step has a mask
  int64_t words = 0;
  Fills* fills = nullptr;  // masks that the threads of the step make themselves; null: none
  std::chrono::steady_clock::time_point until{};  // nobody waits longer

  // The mask of a row when it is there; null when it has none. Throws std::runtime_error when it does not
  // come.
  const uint32_t* of(int64_t row) const { return ready == nullptr ? nullptr : wait(row); }

  const uint32_t* wait(int64_t row) const;

  // Makes one; false: there is none to make.
  bool help() const { return fills != nullptr && fills->help(); }
};

// Says that a row's mask, written before by the same thread, is there.
void raise_flag(int32_t* ready, int64_t row);

}  // namespace kvasir
