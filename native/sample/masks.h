// What a step knows of its masks.
#pragma once
#include <chrono>
#include <cstdint>

#include "sample/fills.h"

namespace kvasir {

struct StepMasks {
  Fills* fills = nullptr;                         // null: no row of the step has a mask
  std::chrono::steady_clock::time_point until{};  // nobody waits longer

  // The mask of a row when it is there; null when it has none. Throws std::runtime_error when it does not
  // come.
  const uint32_t* of(int64_t row) const { return fills == nullptr ? nullptr : wait(row); }

  const uint32_t* wait(int64_t row) const;

  // Makes one; false: there is none to make.
  bool help() const { return fills != nullptr && fills->help(); }
};

}  // namespace kvasir
