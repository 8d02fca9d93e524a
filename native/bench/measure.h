// What the machine allows: the ceilings that every speed is reported against.
#pragma once
#include <cstddef>
#include <string>

namespace kvasir {

// Rate reached by `n_threads` threads together, best code that this CPU has, over about 0.2 s of wall time:
//   "read"  GB/s streaming over `n_bytes` (split between the threads; repeated when it is small)
//   "int8"  GOP/s of unsigned x signed byte dot products into int32, multiply and add counted apart
//   "bf16"  GFLOP/s of bfloat16 dot products into fp32
//   "fp32"  GFLOP/s of fp32 fused multiply-adds
// Throws std::invalid_argument for an unknown kind, n_threads < 1 or a "read" below 64 KiB per thread.
// Returns 0 when the CPU has no instruction for the kind: measure_missing says which.
double measure(const std::string& kind, int n_threads, std::size_t n_bytes);

// Empty, or why `kind` cannot be measured on this CPU.
std::string measure_missing(const std::string& kind);

}  // namespace kvasir
