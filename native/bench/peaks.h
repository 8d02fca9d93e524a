// The inner loops behind bench/measure.h, one per instruction set, and the choice among them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvasir::peaks {

// One arithmetic loop; `ops` operations per iteration. `run` is null when the CPU lacks what `needs` names.
struct Peak {
  std::uint64_t (*run)(long iterations);
  double ops;
  const char* needs;
};

// Reads `n` bytes (a multiple of 512, 64-byte aligned) and returns a value that depends on all of them.
using Read = std::uint64_t (*)(const char* data, std::size_t n);

Read best_read();
Peak best_int8();
Peak best_bf16();
Peak best_fp32();

}  // namespace kvasir::peaks
