// Scales and zeros of integer codes (layouts.h: qg, q4c). Include after words.inl.
#pragma once
#include "generic/linear_formats.inl"

namespace kvasir::KVASIR_ISA {

// The f32 scales of a head; `top` has the bytes behind them.
KVASIR_INLINE vf split_scale(const uint8_t* head, vi top) {
  return from_bits(ori(shl<13>(load_u16(head)), shl<24>(andi(top, set1i(0xe0)))));
}

// What makes bytes of Base + code - zero of codes: 16 - zero is in the lower five bits of each lane.
template <int Base>
KVASIR_INLINE vi zero_offset(vi top) {
  vi m = andi(top, set1i(31));
  m = ori(m, shl<8>(m));
  return add8(ori(m, shl<16>(m)), each(Base - 16));
}

// Codes of four bits to bytes.
KVASIR_INLINE void four_bit_codes(const uint8_t* p, vi offset, Unpacked& u) {
  const vi low = each(15);
  for (int j = 0; j < 4; j++) {
    const vi x = loadi(reinterpret_cast<const int32_t*>(p + 64 * j));
    put(u, 2 * j, add8(andi(x, low), offset));
    put(u, 2 * j + 1, add8(andi(shr<4>(x), low), offset));
  }
}

}  // namespace kvasir::KVASIR_ISA
