// Groups of layouts whose codes have a zero of their own, of those with one scale a column, and of NVFP4
// (layouts.h). Included by compact.inl, behind what it brings.
#pragma once
#include "generic/compact_level.inl"

namespace kvasir::KVASIR_ISA {

// The f32 scales of a head; `top` has the bytes behind them.
KVASIR_INLINE vf split_scale(const uint8_t* head, vi top) {
  return from_bits(ori(shl<13>(load_u16(head)), shl<24>(andi(top, set1i(0xe0)))));
}

// What makes bytes of codes: 16 - zero is in the lower five bits of each lane.
KVASIR_INLINE vi zero_offset(vi top) {
  vi m = andi(top, set1i(31));
  m = ori(m, shl<8>(m));
  return add8(ori(m, shl<16>(m)), each(kQ8Zero - 16));
}

// Codes of so many bits to bytes.
template <int Bits>
KVASIR_INLINE void unpack_codes(const uint8_t* p, vi offset, Unpacked& u) {
  if constexpr (Bits == 2) {
    two_bits(p, offset, u);
  } else if constexpr (Bits == 3) {
    three_bits(p, p + 128, offset, u);
  } else if constexpr (Bits == 4) {
    const vi low = each(15);
    for (int j = 0; j < 4; j++) {
      const vi x = load4(p + 64 * j);
      put(u, 2 * j, add8(andi(x, low), offset));
      put(u, 2 * j + 1, add8(andi(shr<4>(x), low), offset));
    }
  } else {
    unpack8(p, u);
  }
}

template <Layout L, int Bits>
struct CompactGrouped {
  static constexpr Layout kLayout = L;
  static constexpr int kHead = 48;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    const vi top = load_u8(head + 32);
    s.scale[0] = split_scale(head, top);
    unpack_codes<Bits>(p, zero_offset(top), u);
  }
};

// With the front of the tile in place of a head.
struct CompactQ4c {
  static constexpr Layout kLayout = Layout::q4c;
  static constexpr int kHead = 0;
  KVASIR_INLINE void read(const uint8_t* front, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    s.scale[0] = load(reinterpret_cast<const float*>(front));
    unpack_codes<4>(p, zero_offset(load_u8(front + 64)), u);
  }
};
struct CompactQ8c {
  static constexpr Layout kLayout = Layout::q8c;
  static constexpr int kHead = 0;
  KVASIR_INLINE void read(const uint8_t* front, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    s.scale[0] = load(reinterpret_cast<const float*>(front));
    unpack8(p, u);
  }
};

template <bool Divides>
struct CompactNvfp4 {
  static constexpr Layout kLayout = Divides ? Layout::nvfp4d : Layout::nvfp4;
  static constexpr int kHead = 0;
  KVASIR_INLINE void read(const uint8_t* front, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    four_bits(kFp4Values, p, u);
    const vf f = load(reinterpret_cast<const float*>(front));
    for (int i = 0; i < 2; i++) {
      const vf x = mul(load_e4m3_256th(p + 256 + 16 * i), set1(256));
      s.scale[i] = Divides ? div(x, vmax(f, set1(0x1p-126f))) : mul(x, f);  // missing columns have f = 0
    }
  }
};

}  // namespace kvasir::KVASIR_ISA
