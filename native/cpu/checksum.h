// Checksums of what is kept on disk: fast enough that every byte is checked before it is used.
#pragma once
#include <cstdint>

#include "pool/pool.h"

namespace kvasir {

// XXH64 (Yann Collet, xxHash specification 0.1.1). Detects damage, not malice.
uint64_t xxh64(const uint8_t* data, int64_t n, uint64_t seed = 0);

// out[i]: xxh64 of bytes [i * chunk, (i + 1) * chunk) of data; the last chunk may be shorter.
void checksums(Pool& pool, const uint8_t* data, int64_t n, int64_t chunk, uint64_t* out);

}  // namespace kvasir
