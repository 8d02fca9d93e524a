// exp and log in plain float32: only + - * / and bit operations, rounded in the order written, never fused.
// sampling/numerics.py states the same operations; bits are equal on every level and in NumPy.
#pragma once
#include <bit>
#include <cstdint>
#include <limits>

// One source, three instruction sets: loops over these functions are vectorised by the compiler, and without
// FMA the vector width cannot change a bit.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(KVASIR_NO_CLONES)
#define KVASIR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define KVASIR_CLONES
#endif
#define KVASIR_INLINE static inline __attribute__((always_inline))

namespace kvasir {

inline constexpr int kLanes = 16;   // partial sums of a tile
inline constexpr int kBlock = 64;   // tokens of 16 Philox counters
inline constexpr int kTile = 1024;  // elements whose lanes are summed before the next tile
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kExpFloor = -87.0f;  // below this exp gives 0: no result is ever subnormal

// exp(x) for x <= 0.
KVASIR_INLINE float exp_of(float x) {
  const float low = x > kExpFloor ? x : kExpFloor;
  const float shifted = low * 1.4426950408889634f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = low - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.3814599e-3f;
  p = p * r + 8.368717e-3f;
  p = p * r + 4.166839e-2f;
  p = p * r + 1.6666521e-1f;
  p = p * r + 4.9999994e-1f;
  p = p * (r * r);
  p = p + r;
  p = p + 1.0f;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3F800000u);
  return x < kExpFloor ? 0.0f : p * power;
}

// log(x) for positive normal x.
KVASIR_INLINE float log_of(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t e = (bits - 0x3F3504F3) >> 23;
  const float f = std::bit_cast<float>(bits - static_cast<int32_t>(static_cast<uint32_t>(e) << 23)) - 1.0f;
  const float z = f * f;
  float p = -7.634493e-2f;
  p = p * f + 1.2761575e-1f;
  p = p * f + -1.3160183e-1f;
  p = p * f + 1.4201759e-1f;
  p = p * f + -1.6623357e-1f;
  p = p * f + 2.0001227e-1f;
  p = p * f + -2.500082e-1f;
  p = p * f + 3.333333e-1f;
  const float n = static_cast<float>(e);
  float y = f * z;
  y = y * p;
  y = y + n * -2.12194440e-4f;
  y = y - 0.5f * z;
  y = f + y;
  return y + n * 0.693359375f;
}

}  // namespace kvasir
