// A group of 32 k of one tile, unpacked to bytes in plain C++. Include after codes.h.
#pragma once
#include "kernels.h"

// Calls, not copies, for the time that compiling takes.
#define KVASIR_CALL static __attribute__((noinline, unused))

namespace kvasir::isa_scalar {

// Centred or offset weights of a group: [four k][column][k]
struct Unpacked {
  int8_t w[8][64];
};

KVASIR_CALL void unpack4(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 4; j++)
    for (int b = 0; b < 64; b++) {
      u.w[2 * j][b] = int8_t(p[64 * j + b] & 15);
      u.w[2 * j + 1][b] = int8_t(p[64 * j + b] >> 4);
    }
}

KVASIR_CALL void unpack8(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 8; j++)
    for (int b = 0; b < 64; b++) u.w[j][b] = int8_t(p[64 * j + b] ^ 128);
}

// High: bit r of byte b is of the k in w[r][b].
template <int Zero>
KVASIR_CALL void unpack5(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  for (int r = 0; r < 8; r++)
    for (int b = 0; b < 64; b++) u.w[r][b] = int8_t((u.w[r][b] | (high[b] >> r & 1) << 4) - Zero);
}

template <int Zero>
KVASIR_CALL void unpack6(const uint8_t* low, const uint8_t* high, Unpacked& u) {
  unpack4(low, u);
  for (int r = 0; r < 8; r++)
    for (int b = 0; b < 64; b++)
      u.w[r][b] = int8_t((u.w[r][b] | (high[64 * (r / 4) + b] >> 2 * (r % 4) & 3) << 4) - Zero);
}

KVASIR_CALL void unpack_table(const uint8_t* p, Unpacked& u) {
  unpack4(p, u);
  for (int r = 0; r < 8; r++)
    for (int b = 0; b < 64; b++) u.w[r][b] = kIq4Values[u.w[r][b]];
}

}  // namespace kvasir::isa_scalar
