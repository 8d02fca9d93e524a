// Words of a codebook by gathering; see compact.inl. High bits of the codes are planes for pairs of words:
// bit 2c + i of the 32 is of column c and word i of the pair.
#pragma once
#include "grids.h"

namespace kvasir::KVASIR_ISA {

// Code `word` of 16 columns; the bits above its byte are planes of `plane` bytes.
template <int N>
KVASIR_INLINE vi code_of(const uint8_t* codes, const uint8_t* high, int plane, int word) {
  const vi pair = load_u16(codes + 32 * (word / 2));
  vi code = word % 2 ? shr<8>(pair) : andi(pair, set1i(255));
  for (int i = 0; 256 << i < N; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, high + i * plane + 4 * (word / 2), 4);
    code = ori(code, where_bits(bits, word % 2, 256 << i));
  }
  return code;
}

template <int N>
KVASIR_INLINE void words8(const Grid8<N>& grid, const uint8_t* codes, const uint8_t* high, Unpacked& u) {
  for (int word = 0; word < 4; word++) {
    vi four[2];
    word8(grid, code_of<N>(codes, high, 8, word), four);
    for (int i = 0; i < 2; i++) put(u, 2 * word + i, four[i]);
  }
}

}  // namespace kvasir::KVASIR_ISA
