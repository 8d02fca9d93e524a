// Linears in plain C++: the readable twin of the other levels, equal to them bit for bit.
#include "isa/scalar/vec.h"
//
#include "generic/level.inl"

namespace kvasir::isa_scalar {

constexpr int kIntRows = 2, kFloatRows = 2;
constexpr int kQ8Zero = 0;

// Centred or offset weights of a group: [four k][column][k]
struct Unpacked {
  int8_t w[8][64];
};

KVASIR_INLINE void unpack4(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 4; j++)
    for (int b = 0; b < 64; b++) {
      u.w[2 * j][b] = int8_t(p[64 * j + b] & 15);
      u.w[2 * j + 1][b] = int8_t(p[64 * j + b] >> 4);
    }
}

KVASIR_INLINE void unpack8(const uint8_t* p, Unpacked& u) {
  for (int j = 0; j < 8; j++)
    for (int b = 0; b < 64; b++) u.w[j][b] = int8_t(p[64 * j + b] ^ 128);
}

KVASIR_INLINE vf int_dot(const Unpacked& u, const int8_t* a) {
  int32_t sum[16] = {};
  for (int j = 0; j < 8; j++)
    for (int c = 0; c < 16; c++)
      for (int b = 0; b < 4; b++) sum[c] += int32_t(u.w[j][4 * c + b]) * a[4 * j + b];
  return to_float(loadi(sum));
}

}  // namespace kvasir::isa_scalar

#include "generic/math.inl"
//
#include "generic/linear.inl"
//
#include "generic/linear_float.inl"
//
#include "generic/bf16_pair.inl"
//
#include "generic/int_dots.inl"
#include "generic/linear_bf16.inl"
//
#include "generic/linear_int.inl"
