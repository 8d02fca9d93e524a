// Bytes of a group and of codebooks in plain C++ (compact.inl).
#pragma once
#include "kernels.h"

namespace kvasir::isa_scalar {

using Bytes64 = uint8_t[64];

template <class F>
KVASIR_INLINE vi of_bytes(F f) {
  Bytes64 bytes;
  for (int i = 0; i < 64; i++) bytes[i] = uint8_t(f(i));
  vi x;
  __builtin_memcpy(&x, bytes, 64);
  return x;
}
KVASIR_INLINE uint8_t byte_of(const vi& x, int i) { return uint8_t(uint32_t(x.v[i / 4]) >> 8 * (i % 4)); }

KVASIR_INLINE vi each(int byte) { return set1i(int32_t(uint32_t(uint8_t(byte)) * 0x01010101u)); }
KVASIR_INLINE void put(Unpacked& u, int j, vi x) { __builtin_memcpy(u.w[j], &x, 64); }
KVASIR_INLINE vi get(const Unpacked& u, int j) {
  vi x;
  __builtin_memcpy(&x, u.w[j], 64);
  return x;
}
KVASIR_INLINE vi add8(vi a, vi b) {
  return of_bytes([&](int i) { return byte_of(a, i) + byte_of(b, i); });
}
KVASIR_INLINE vi shuffle16(const int8_t* table, vi x) {
  return of_bytes([&](int i) { return table[byte_of(x, i) & 15]; });
}
KVASIR_INLINE vi negate(vi x, const uint8_t* bits) {
  return of_bytes([&](int i) { return bits[i / 8] >> i % 8 & 1 ? -byte_of(x, i) : byte_of(x, i); });
}
KVASIR_INLINE vi gather(const uint32_t* table, vi index) {
  return lanes<vi>([&](int i) { return int32_t(table[index.v[i]]); });
}
KVASIR_INLINE vi load_u16(const uint8_t* p) {
  return lanes<vi>([&](int i) { return p[2 * i] | p[2 * i + 1] << 8; });
}
// `value` in the lanes c whose bit 2c + odd is set.
KVASIR_INLINE vi where_bits(uint32_t bits, int odd, int32_t value) {
  return lanes<vi>([&](int i) { return bits >> (2 * i + odd) & 1 ? value : 0; });
}

}  // namespace kvasir::isa_scalar
