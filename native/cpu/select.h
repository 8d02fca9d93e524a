// Which ISA levels there are, which of them this machine can run, and the kernels of each.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels.h"

namespace kvasir {

struct Level {
  const char* name;
  bool (*runs)();  // on this CPU and operating system
  void (*fill)(Kernels&);
  bool is_emulated = false;  // part of its instructions are functions: for tests, never chosen by itself
  bool is_wide = false;      // the first whose vectors have more than 256 bits
  bool is_proven = true;     // its tests have run on a CPU that has it
};

// Lowest first.
std::span<const Level> all_levels();

// Those that were built and run here, lowest first. With `emulated` also those.
std::vector<std::string> levels(bool emulated = false);

// The kernels of a level: its own over those of the lower levels. Throws std::invalid_argument with the
// levels there are when `level` is unknown or cannot run here.
Kernels kernels_for(const char* level);

}  // namespace kvasir
