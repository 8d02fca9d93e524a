#include "cpu/checksum.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace kvasir {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                   kPrime5 = 0x27D4EB2F165667C5u;

template <class T>
uint64_t read(const uint8_t* p) {
  T word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

uint64_t round(uint64_t sum, uint64_t word) { return std::rotl(sum + word * kPrime2, 31) * kPrime1; }

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kPrime1 + kPrime4; }

// What the stripes of 32 bytes leave over.
uint64_t finish(uint64_t hash, const uint8_t* p, const uint8_t* end) {
  for (; end - p >= 8; p += 8) hash = std::rotl(hash ^ round(0, read<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  for (; end - p >= 4; p += 4) hash = std::rotl(hash ^ read<uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
  for (; p < end; p++) hash = std::rotl(hash ^ *p * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

struct Work {
  const uint8_t* data;
  int64_t n, chunk;
  uint64_t* out;
  std::atomic<int64_t> next{0};
};

void share(void* context, int) {
  auto& work = *static_cast<Work*>(context);
  const int64_t chunks = (work.n + work.chunk - 1) / work.chunk;
  for (int64_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < chunks;)
    work.out[i] = xxh64(work.data + i * work.chunk, std::min(work.chunk, work.n - i * work.chunk));
}

}  // namespace

uint64_t xxh64(const uint8_t* data, int64_t n, uint64_t seed) {
  const uint8_t *p = data, *end = data + n;
  uint64_t hash = seed + kPrime5;
  if (n >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; end - p >= 32; p += 32)
      for (int i = 0; i < 4; i++) lanes[i] = round(lanes[i], read<uint64_t>(p + 8 * i));
    hash =
        std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (uint64_t lane : lanes) hash = merge(hash, lane);
  }
  return finish(hash + uint64_t(n), p, end);
}

void checksums(Pool& pool, const uint8_t* data, int64_t n, int64_t chunk, uint64_t* out) {
  Work work{data, n, chunk, out};
  pool.run(share, &work);
}

}  // namespace kvasir
