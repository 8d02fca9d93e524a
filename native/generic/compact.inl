// Groups of the compact layouts (layouts.h), unpacked to bytes and to the scales of their runs: what
// linear_formats.inl calls Q8 (one run of 32) or Q8x (two of 16). Beside unpack.inl a level brings
//   put(u, j, vi), get(u, j): four k of 16 columns, as bytes of kQ8Zero + value; of the bytes of a vi:
//   add8(a, b), negate(x, bits), shuffle16(table, x); load_u16(p); words8<N>(grid, codes, high, u),
//   words4<N>(...): a group of words of a codebook (grid_words.inl), word8<N>(grid, index, vi*): one of them.
#pragma once
#include "generic/compact_level.inl"
#include "generic/linear_formats.inl"
#include "grids.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE vi load4(const uint8_t* p) { return loadi(reinterpret_cast<const int32_t*>(p)); }

// A code that stands for code - Zero.
template <int Zero>
KVASIR_INLINE void put_code(Unpacked& u, int j, vi code) {
  put(u, j, add8(code, each(kQ8Zero - Zero)));
}

// `offset` makes bytes of codes.
KVASIR_INLINE void two_bits(const uint8_t* p, vi offset, Unpacked& u) {
  const vi low = each(3);
  for (int j = 0; j < 2; j++) {
    const vi x = load4(p + 64 * j);
    put(u, 4 * j, add8(andi(x, low), offset));
    put(u, 4 * j + 1, add8(andi(shr<2>(x), low), offset));
    put(u, 4 * j + 2, add8(andi(shr<4>(x), low), offset));
    put(u, 4 * j + 3, add8(andi(shr<6>(x), low), offset));
  }
}

template <int J>
KVASIR_INLINE void three_bits_half(vi low, vi high, vi offset, Unpacked& u) {
  const vi two = each(3), third = each(4);
  const vi up[] = {andi(J ? shr<2>(high) : shl<2>(high), third), andi(J ? shr<3>(high) : shl<1>(high), third),
                   andi(J ? shr<4>(high) : high, third), andi(J ? shr<5>(high) : shr<1>(high), third)};
  put(u, J, add8(ori(andi(low, two), up[0]), offset));
  put(u, J + 1, add8(ori(andi(shr<2>(low), two), up[1]), offset));
  put(u, J + 2, add8(ori(andi(shr<4>(low), two), up[2]), offset));
  put(u, J + 3, add8(ori(andi(shr<6>(low), two), up[3]), offset));
}

// A plane of two bits, and one of the third.
KVASIR_INLINE void three_bits(const uint8_t* low, const uint8_t* third, vi offset, Unpacked& u) {
  const vi high = load4(third);
  three_bits_half<0>(load4(low), high, offset, u);
  three_bits_half<4>(load4(low + 64), high, offset, u);
}

KVASIR_INLINE void four_bits(const int8_t* table, const uint8_t* p, Unpacked& u) {
  const vi low = each(15);
  for (int j = 0; j < 4; j++) {
    const vi x = load4(p + 64 * j);
    put_code<0>(u, 2 * j, shuffle16(table, andi(x, low)));
    put_code<0>(u, 2 * j + 1, shuffle16(table, andi(shr<4>(x), low)));
  }
}

// Of a head behind its d: a nibble per column and group.
KVASIR_INLINE vi nibbles(const uint8_t* head, int64_t g) {
  const vi x = load_u8(head + 32 + 16 * (g / 2));
  return g % 2 ? shr<4>(x) : andi(x, set1i(15));
}
// d * Eighths / 8 * (2 step + 1), exact.
template <int Eighths>
KVASIR_INLINE vf odd_scale(const uint8_t* head, vi step) {
  return mul(mul(load_half(head), set1(Eighths * 0.125f)), to_float(addi(addi(step, step), set1i(1))));
}
template <int Eighths>
KVASIR_INLINE void odd_scales(const uint8_t* head, vi steps, Scales& s) {
  s.scale[0] = odd_scale<Eighths>(head, andi(steps, set1i(15)));
  s.scale[1] = odd_scale<Eighths>(head, shr<4>(steps));
}
KVASIR_INLINE vf signed_scale(const uint8_t* head, const uint8_t* p) {
  return mul(load_half(head), to_float(subi(load_u8(p), set1i(32))));
}

struct CompactQ2k {
  static constexpr Layout kLayout = Layout::q2k;
  static constexpr int kHead = 64;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    two_bits(p, each(kQ8Zero), u);
    const vf d = load_half(head), e = load_half(head + 32);
    for (int i = 0; i < 2; i++) {
      const vi x = load_u8(p + 128 + 16 * i);
      s.scale[i] = mul(d, to_float(andi(x, set1i(15))));
      s.min[i] = mul(e, to_float(shr<4>(x)));
    }
  }
};
struct CompactQ3k {
  static constexpr Layout kLayout = Layout::q3k;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    three_bits(p, p + 128, each(kQ8Zero - 4), u);
    for (int i = 0; i < 2; i++) s.scale[i] = signed_scale(head, p + 192 + 16 * i);
  }
};
struct CompactIq4xs {
  static constexpr Layout kLayout = Layout::iq4xs;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    four_bits(kIq4Values, p, u);
    s.scale[0] = signed_scale(head, p + 256);
  }
};
struct CompactMxfp4 {
  static constexpr Layout kLayout = Layout::mxfp4;
  static constexpr int kHead = 0;
  KVASIR_INLINE void read(const uint8_t*, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    four_bits(kFp4Values, p, u);
    // 2^(e - 128), the two lowest of them denormal
    const vi e = load_u8(p + 256), n = maxi(subi(e, set1i(1)), set1i(0));
    s.scale[0] = from_bits(maxi(shl<23>(n), shl<21>(addi(subi(e, n), set1i(1)))));
  }
};
struct CompactTq2 {
  static constexpr Layout kLayout = Layout::tq2;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    two_bits(p, each(kQ8Zero - 1), u);
    s.scale[0] = load_half(head);
  }
};
// Even and odd bytes apart: what a product by 3 carries out of a byte is the next digit.
struct CompactTq1 {
  static constexpr Layout kLayout = Layout::tq1;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t*, int64_t g, Unpacked& u, Scales& s) {
    const vi bytes = set1i(0x00ff00ff), digit = set1i(0x00030003);
    for (int64_t t = 8 * g / 5 * 5; t < 8 * g + 8;) {
      const vi x = load4(head + kHead + 64 * (t / 5));
      vi even = andi(x, bytes), odd = andi(shr<8>(x), bytes);
      for (int i = 0; i < 5; i++, t++) {
        even = addi(even, addi(even, even));
        odd = addi(odd, addi(odd, odd));
        if (t >= 8 * g && t < 8 * g + 8)
          put_code<1>(u, int(t - 8 * g), ori(andi(shr<8>(even), digit), shl<8>(andi(shr<8>(odd), digit))));
        even = andi(even, bytes);
        odd = andi(odd, bytes);
      }
    }
    s.scale[0] = load_half(head);
  }
};

// The signs of a group, from `bits` on.
KVASIR_INLINE void negate_all(const uint8_t* bits, Unpacked& u) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; j++) put(u, j, negate(get(u, j), bits + 8 * j));
}

struct CompactIq2xxs {
  static constexpr Layout kLayout = Layout::iq2xxs;
  static constexpr int kHead = 96;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t g, Unpacked& u, Scales& s) {
    words8<256>(kGrid2xxs, p, nullptr, u);
    negate_all(p + 64, u);
    s.scale[0] = odd_scale<1>(head, nibbles(head, g));
  }
};
struct CompactIq2xs {
  static constexpr Layout kLayout = Layout::iq2xs;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    words8<512>(kGrid2xs, p, p + 64, u);
    negate_all(p + 72, u);
    odd_scales<1>(head, load_u8(p + 136), s);
  }
};
struct CompactIq2s {
  static constexpr Layout kLayout = Layout::iq2s;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    words8<1024>(kGrid2s, p, p + 64, u);
    negate_all(p + 80, u);
    odd_scales<1>(head, load_u8(p + 144), s);
  }
};
struct CompactIq3xxs {
  static constexpr Layout kLayout = Layout::iq3xxs;
  static constexpr int kHead = 96;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t g, Unpacked& u, Scales& s) {
    words4<256>(kGrid3xxs, p, nullptr, u);
    negate_all(p + 128, u);
    s.scale[0] = odd_scale<2>(head, nibbles(head, g));
  }
};
struct CompactIq3s {
  static constexpr Layout kLayout = Layout::iq3s;
  static constexpr int kHead = 96;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t g, Unpacked& u, Scales& s) {
    words4<512>(kGrid3s, p, p + 128, u);
    negate_all(p + 144, u);
    s.scale[0] = odd_scale<8>(head, nibbles(head, g));
  }
};

// Ternary word `word` of a group: `high` has the upper 3 of 11 bits; a column's bit `minus` says whether an
// eighth is taken from its elements or added.
KVASIR_INLINE void put_ternary(const uint8_t* codes, int word, vi high, vi minus, Unpacked& u) {
  const vi pair = load_u16(codes + 32 * (word / 2));
  const vi low = word % 2 ? shr<8>(pair) : andi(pair, set1i(255));
  vi four[2];
  word8(kGrid1, ori(low, shl<8>(andi(high, set1i(7)))), four);
  const vi shift = subi(each(1), andi(subi(set1i(0), minus), set1i(0x01010102)));
  for (int i = 0; i < 2; i++) put(u, 2 * word + i, add8(four[i], shift));
}
struct CompactIq1s {
  static constexpr Layout kLayout = Layout::iq1s;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    const vi top = load_u16(p + 64), minus = shr<15>(top);
    put_ternary(p, 0, top, minus, u);
    put_ternary(p, 1, shr<3>(top), minus, u);
    put_ternary(p, 2, shr<6>(top), minus, u);
    put_ternary(p, 3, shr<9>(top), minus, u);
    s.scale[0] = odd_scale<1>(head, andi(shr<12>(top), set1i(7)));
  }
};
struct CompactIq1m {
  static constexpr Layout kLayout = Layout::iq1m;
  static constexpr int kHead = 32;
  KVASIR_INLINE void read(const uint8_t* head, const uint8_t* p, int64_t, Unpacked& u, Scales& s) {
    const vi top = load_u16(p + 64), one = set1i(1), steps = load_u8(p + 96);
    put_ternary(p, 0, top, andi(shr<3>(top), one), u);
    put_ternary(p, 1, shr<4>(top), andi(shr<7>(top), one), u);
    put_ternary(p, 2, shr<8>(top), andi(shr<11>(top), one), u);
    put_ternary(p, 3, shr<12>(top), shr<15>(top), u);
    s.scale[0] = odd_scale<1>(head, andi(steps, set1i(7)));
    s.scale[1] = odd_scale<1>(head, shr<3>(steps));
  }
};

}  // namespace kvasir::KVASIR_ISA

#include "generic/compact_grouped.inl"

namespace kvasir::KVASIR_ISA {

// Group g of a tile; fetches what lies ahead.
template <class L>
__attribute__((noinline)) void read_group(const uint8_t* tile, int64_t g, Unpacked& u, Scales& s) {
  constexpr LayoutSize size = kLayoutSizes[int(L::kLayout)];
  constexpr int groups = size.elements / kGroup, bytes = (size.bytes - L::kHead) / groups, ahead = 2048;
  const uint8_t* head = tile + size.front + g / groups * size.bytes;
  const uint8_t* p = head + L::kHead + g % groups * bytes;
  for (int line = 0; line < bytes; line += 64) __builtin_prefetch(p + ahead + line, 0, 3);
  L::read(size.front ? tile : head, p, g % groups, u, s);
}

template <Layout L, int Bits>
constexpr GroupReader read_grouped() {
  return read_group<CompactGrouped<L, Bits>>;
}

GroupReader group_reader(Layout layout) {
  constexpr GroupReader all[] = {read_group<CompactQ2k>,
                                 read_group<CompactQ3k>,
                                 read_group<CompactIq4xs>,
                                 read_group<CompactMxfp4>,
                                 read_group<CompactIq2xxs>,
                                 read_group<CompactIq2xs>,
                                 read_group<CompactIq2s>,
                                 read_group<CompactIq3xxs>,
                                 read_group<CompactIq3s>,
                                 read_group<CompactIq1s>,
                                 read_group<CompactIq1m>,
                                 read_group<CompactTq1>,
                                 read_group<CompactTq2>,
                                 read_grouped<Layout::qg2_32, 2>(),
                                 read_grouped<Layout::qg2_64, 2>(),
                                 read_grouped<Layout::qg2_128, 2>(),
                                 read_grouped<Layout::qg3_32, 3>(),
                                 read_grouped<Layout::qg3_64, 3>(),
                                 read_grouped<Layout::qg3_128, 3>(),
                                 read_grouped<Layout::qg4_32, 4>(),
                                 read_grouped<Layout::qg4_64, 4>(),
                                 read_grouped<Layout::qg4_128, 4>(),
                                 read_grouped<Layout::qg8_32, 8>(),
                                 read_grouped<Layout::qg8_64, 8>(),
                                 read_grouped<Layout::qg8_128, 8>(),
                                 read_group<CompactQ4c>,
                                 read_group<CompactQ8c>,
                                 read_group<CompactNvfp4<false>>,
                                 read_group<CompactNvfp4<true>>};
  static_assert(sizeof(all) / sizeof(all[0]) == int(Layout::f8c) - int(Layout::q2k));
  return all[int(layout) - int(Layout::q2k)];
}

// A row of a compact weight back to floats; of 16 columns unpacked, one is used.
void embed_compact(const uint8_t* tile, Layout layout, int c, int64_t K, float scale, float* out) {
  const GroupReader read = group_reader(layout);
  const bool runs = has_two_runs(layout), mins = layout == Layout::q2k;
  for (int64_t g = 0; g < K / kGroup; g++, out += kGroup) {
    Unpacked u;
    Scales s;
    read(tile, g, u, s);
    uint8_t bytes[8][64];
    static_assert(sizeof(bytes) == sizeof(u));
    __builtin_memcpy(bytes, &u, sizeof(u));
    float step[2][16], min[2][16] = {};
    for (int i = 0; i < 2; i++) {
      store(step[i], s.scale[runs ? i : 0]);
      if (mins) store(min[i], s.min[i]);
    }
    for (int k = 0; k < kGroup; k++) {
      const int8_t value = int8_t(bytes[k / 4][4 * c + k % 4] ^ kQ8Zero);
      out[k] = fma1(step[k / 16][c], float(value), min[k / 16][c]) * scale;
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
