// Groups of layouts whose codes have a zero of their own, of those with one scale a column, and of NVFP4
// (layouts.h). Included by compact.inl, behind what it brings.
#pragma once
#include "generic/code_zeros.inl"
#include "generic/compact_level.inl"

namespace kvasir::KVASIR_ISA {

// Codes of so many bits to bytes.
template <int Bits>
KVASIR_INLINE void unpack_codes(const uint8_t* p, vi offset, Unpacked& u) {
  if constexpr (Bits == 2) {
    two_bits(p, offset, u);
  } else if constexpr (Bits == 3) {
    three_bits(p, p + 128, offset, u);
  } else if constexpr (Bits == 4) {
    four_bit_codes(p, offset, u);
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
    unpack_codes<Bits>(p, zero_offset<kQ8Zero>(top), u);
  }
};

// With the front of the tile in place of a head.
struct CompactQ4c {
  static constexpr Layout kLayout = Layout::q4c;
  static constexpr int kHead = 0;
  KVASIR_INLINE void read(const uint8_t* front, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    s.scale[0] = load(reinterpret_cast<const float*>(front));
    unpack_codes<4>(p, zero_offset<kQ8Zero>(load_u8(front + 64)), u);
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
