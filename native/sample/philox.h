// Counter-based noise: Philox4x32-10 (Salmon et al., SC 2011), sixteen counters at a time.
#pragma once
#include "sample/numerics.h"

namespace kvasir {

// What noise is for: what the target draws, what a draft program draws by itself, and whether its token
// stays.
enum Stream : uint32_t { kTargetNoise, kDraftNoise, kVerdictNoise };

// Words of tokens [64 * block, 64 * block + 64): token t has word t & 3 of counter (t >> 2, out_index,
// stream).
KVASIR_INLINE void philox_block(uint64_t seed, int64_t out_index, uint32_t stream, uint32_t block,
                                uint32_t* words) {
  const auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  const auto index0 = static_cast<uint32_t>(out_index);
  const auto index1 = static_cast<uint32_t>(static_cast<uint64_t>(out_index) >> 32);
  for (uint32_t i = 0; i < kBlock / 4; ++i) {
    uint32_t c0 = block * (kBlock / 4) + i, c1 = index0, c2 = index1, c3 = stream;
#pragma GCC unroll 10
    for (uint32_t round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ (key0 + round * 0x9E3779B9u);
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ (key1 + round * 0xBB67AE85u);
      c3 = static_cast<uint32_t>(p0);
    }
    words[4 * i] = c0;
    words[4 * i + 1] = c1;
    words[4 * i + 2] = c2;
    words[4 * i + 3] = c3;
  }
}

// v = (word + 1/2) / 2^32, below 1.
KVASIR_INLINE float uniform(uint32_t word) {
  // The last word whose v rounds below 1.
  constexpr uint32_t kLast = 0xFFFFFF7Fu;
  return (static_cast<float>(word < kLast ? word : kLast) + 0.5f) * 0x1p-32f;
}

// E = -log1p(-v); v = 1 is excluded, it would win every draw.
KVASIR_INLINE float exponential(uint32_t word) {
  const float v = uniform(word);
  const float u = 1.0f - v;
  const float lost = (v + (u - 1.0f)) / u;
  return lost - log_of(u);
}

}  // namespace kvasir
