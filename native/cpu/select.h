// Which ISA levels this machine can run, and the kernels of each.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace kvasir {

// Levels that this CPU and operating system can run, lowest first; "scalar" is always there.
std::vector<std::string> levels();

// The kernels of a level: its own over those of the lower levels. Throws std::invalid_argument with the
// levels there are when `level` is unknown or cannot run here.
Kernels kernels_for(const char* level);

}  // namespace kvasir
