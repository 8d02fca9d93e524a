#include "cpu/pack_compact.h"

#include <bit>
#include <cstring>

namespace kvasir {
namespace {

// Where a group of a column goes: `head` of its block, its own bytes, its number in the block.
struct Place {
  uint8_t *head, *p;
  int group, column;

  // `bytes` of the column among those of 16.
  void put(uint8_t* at, const void* value, int bytes) const {
    std::memcpy(at + bytes * column, value, size_t(bytes));
  }
  void put8(int at, int value) const { p[at + column] = uint8_t(value); }
  void nibble(int value) const { head[32 + 16 * (group / 2) + column] |= uint8_t(value << 4 * (group % 2)); }
};

uint32_t u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
uint32_t u16(const uint8_t* p) { return p[0] | uint32_t(p[1]) << 8; }

// Bits [first, first + count) of each of 32 codes, `count` wide, as planes of 64 bytes: byte 4c + b of plane
// j has those of k = 32 / n * j + 4i + b from bit count * i on.
void put_planes(const Place& to, int at, const uint8_t* q, int first, int count) {
  const int per_plane = 8 / count;
  for (int k = 0; k < 32; k++) {
    const int r = k / 4;
    const int code = q[k] >> first & ((1 << count) - 1);
    to.p[at + 64 * (r / per_plane) + 4 * to.column + k % 4] |= uint8_t(code << count * (r % per_plane));
  }
}

// The first `n` codes of a group: bytes, then planes of the bits above them (grid_words.inl).
void put_codes(const Place& to, const uint16_t* codes, int n, int high_bits) {
  for (int word = 0; word < n; word++) {
    const int lane = 2 * to.column + word % 2;
    to.p[32 * (word / 2) + lane] = uint8_t(codes[word]);
    for (int bit = 0; bit < high_bits; bit++)
      to.p[16 * n + 2 * n * bit + 4 * (word / 2) + lane / 8] |=
          uint8_t((codes[word] >> (8 + bit) & 1) << lane % 8);
  }
}

// A byte of signs for each 8 elements: 64 bits for each 4 elements of 16 columns.
void put_signs(const Place& to, int at, const uint8_t* signs) {
  for (int r = 0; r < 8; r++)
    to.p[at + 8 * r + to.column / 2] |= uint8_t((signs[r / 2] >> 4 * (r % 2) & 15) << 4 * (to.column % 2));
}

// An even number of 8 signs is set: the eighth follows from 7.
uint8_t eight_signs(uint32_t seven) {
  seven &= 127;
  return uint8_t(seven | uint32_t(std::popcount(seven) % 2) << 7);
}

void two_bits(const uint8_t* packed, int g, uint8_t* q) {
  for (int k = 0; k < 32; k++) q[k] = packed[32 * (g / 4) + k] >> 2 * (g % 4) & 3;
}
void nibbles(const uint8_t* packed, uint8_t* q) {
  for (int k = 0; k < 16; k++) {
    q[k] = packed[k] & 15;
    q[16 + k] = packed[k] >> 4;
  }
}

void put_q2k(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  two_bits(block + 16, to.group, q);
  put_planes(to, 0, q, 0, 2);
  for (int i = 0; i < 2; i++) to.put8(128 + 16 * i, block[2 * to.group + i]);
}

void put_q3k(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  two_bits(block + 32, to.group, q);
  for (int k = 0; k < 32; k++) q[k] |= uint8_t((block[k] >> to.group & 1) << 2);
  put_planes(to, 0, q, 0, 2);
  put_planes(to, 128, q, 2, 1);
  const uint8_t* s = block + 96;
  for (int i = 0; i < 2; i++) {
    const int run = 2 * to.group + i;
    const int low = run < 8 ? s[run] & 15 : s[run - 8] >> 4;
    to.put8(192 + 16 * i, low | (s[8 + run % 4] >> 2 * (run / 4) & 3) << 4);
  }
}

void put_iq4xs(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  nibbles(block + 8 + 16 * to.group, q);
  put_planes(to, 0, q, 0, 4);
  const int low = block[4 + to.group / 2] >> 4 * (to.group % 2) & 15;
  to.put8(256, low | int(u16(block + 2) >> 2 * to.group & 3) << 4);
}

void put_mxfp4(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  nibbles(block + 1, q);
  put_planes(to, 0, q, 0, 4);
  to.put8(256, block[0]);
}

void put_tq2(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  two_bits(block, to.group, q);
  put_planes(to, 0, q, 0, 2);
}

int ternary(const uint8_t* block, int k) {
  constexpr uint8_t kPowers[] = {1, 3, 9, 27, 81};
  const int run = k < 160 ? 32 : k < 240 ? 16 : 4, from = k < 160 ? 0 : k < 240 ? 160 : 240;
  const int at = k < 160 ? 0 : k < 240 ? 32 : 48;
  const int fraction = uint8_t(block[at + (k - from) % run] * kPowers[(k - from) / run]);
  return fraction * 3 >> 8;
}
// The whole block at once: five digits of a byte are of five registers of four k.
void put_tq1(const uint8_t* block, const Place& to) {
  if (to.group != 0) return;
  for (int plane = 0; plane < 13; plane++)
    for (int b = 0; b < 4; b++) {
      int value = 0;
      for (int r = 5 * plane; r < 5 * plane + 5; r++)
        value = 3 * value + (r < 64 ? ternary(block, 4 * r + b) : 0);
      to.head[32 + 64 * plane + 4 * to.column + b] = uint8_t((value * 256 + 242) / 243);
    }
}

void put_iq2xxs(const uint8_t* block, const Place& to) {
  const uint8_t* codes = block + 2 + 8 * to.group;
  const uint32_t rest = u32(codes + 4);
  uint16_t words[4];
  uint8_t signs[4];
  for (int i = 0; i < 4; i++) {
    words[i] = codes[i];
    signs[i] = eight_signs(rest >> 7 * i);
  }
  put_codes(to, words, 4, 0);
  put_signs(to, 64, signs);
  to.nibble(int(rest >> 28));
}

void put_iq2xs(const uint8_t* block, const Place& to) {
  uint16_t words[4];
  uint8_t signs[4];
  for (int i = 0; i < 4; i++) {
    const uint32_t x = u16(block + 2 + 8 * to.group + 2 * i);
    words[i] = uint16_t(x & 511);
    signs[i] = eight_signs(x >> 9);
  }
  put_codes(to, words, 4, 1);
  put_signs(to, 72, signs);
  to.put8(136, block[66 + to.group]);
}

void put_iq2s(const uint8_t* block, const Place& to) {
  uint16_t words[4];
  for (int i = 0; i < 4; i++)
    words[i] = uint16_t(block[2 + 4 * to.group + i] | (block[66 + to.group] >> 2 * i & 3) << 8);
  put_codes(to, words, 4, 2);
  put_signs(to, 80, block + 34 + 4 * to.group);
  to.put8(144, block[74 + to.group]);
}

void put_iq3xxs(const uint8_t* block, const Place& to) {
  const uint32_t rest = u32(block + 66 + 4 * to.group);
  uint16_t words[8];
  uint8_t signs[4];
  for (int i = 0; i < 8; i++) words[i] = block[2 + 8 * to.group + i];
  for (int i = 0; i < 4; i++) signs[i] = eight_signs(rest >> 7 * i);
  put_codes(to, words, 8, 0);
  put_signs(to, 128, signs);
  to.nibble(int(rest >> 28));
}

void put_iq3s(const uint8_t* block, const Place& to) {
  uint16_t words[8];
  for (int i = 0; i < 8; i++)
    words[i] = uint16_t(block[2 + 8 * to.group + i] | (block[66 + to.group] >> i & 1) << 8);
  put_codes(to, words, 8, 1);
  put_signs(to, 144, block + 74 + 4 * to.group);
  to.nibble(block[106 + to.group / 2] >> 4 * (to.group % 2) & 15);
}

void put_iq1s(const uint8_t* block, const Place& to) {
  uint16_t words[4];
  for (int i = 0; i < 4; i++) words[i] = block[2 + 4 * to.group + i];
  put_codes(to, words, 4, 0);
  to.put(to.p + 64, block + 34 + 2 * to.group, 2);
}

void put_iq1m(const uint8_t* block, const Place& to) {
  uint16_t words[4];
  for (int i = 0; i < 4; i++) words[i] = block[4 * to.group + i];
  put_codes(to, words, 4, 0);
  to.put(to.p + 64, block + 32 + 2 * to.group, 2);
  to.put8(96, u16(block + 48 + 2 * (to.group / 2)) >> 6 * (to.group % 2) & 63);
}

// The scale of a block of codes, a byte each behind its zero, and that zero.
void put_grouped_head(const uint8_t* block, const Place& to, bool has_zero) {
  const uint32_t scale = u32(block);
  const uint16_t low = uint16_t(scale >> 13);
  to.put(to.head, &low, 2);
  to.head[32 + to.column] = uint8_t(scale >> 29 << 5 | (has_zero ? (16u - block[4]) & 31 : 0));
}

// The same in front of a tile: every block of a row has them.
void put_front(Layout layout, const uint8_t* block, const Place& to) {
  to.put(to.head, block, 4);
  if (layout == Layout::q4c) to.head[64 + to.column] = uint8_t((16u - block[4]) & 31);
}

template <int Bits>
void put_grouped(const uint8_t* block, const Place& to) {
  const uint8_t* q = block + 5 + 32 * to.group;
  if (Bits == 8) {
    for (int j = 0; j < 8; j++) std::memcpy(to.p + 64 * j + 4 * to.column, q + 4 * j, 4);
  } else if (Bits == 3) {
    put_planes(to, 0, q, 0, 2);
    put_planes(to, 128, q, 2, 1);
  } else {
    put_planes(to, 0, q, 0, Bits);
  }
}

void put_nvfp4(const uint8_t* block, const Place& to) {
  uint8_t q[32];
  for (int k = 0; k < 32; k++) q[k] = block[6 + k / 2] >> 4 * (k % 2) & 15;
  put_planes(to, 0, q, 0, 4);
  for (int i = 0; i < 2; i++) to.put8(256 + 16 * i, block[4 + i]);
}

// The f16 numbers of a block.
void put_head(Layout layout, const uint8_t* block, const Place& to) {
  uint16_t d = 0;
  switch (layout) {
    case Layout::mxfp4:
      return;
    case Layout::q2k: {
      const uint16_t e = uint16_t(u16(block + 82) ^ 0x8000);
      to.put(to.head + 32, &e, 2);
      d = uint16_t(u16(block + 80));
      break;
    }
    case Layout::iq1m:  // a nibble of it in each of four words
      for (int i = 0; i < 4; i++) d = uint16_t(d | u16(block + 48 + 2 * i) >> 12 << 4 * i);
      break;
    case Layout::q3k:
      d = uint16_t(u16(block + 108));
      break;
    case Layout::tq1:
      d = uint16_t(u16(block + 52));
      break;
    case Layout::tq2:
      d = uint16_t(u16(block + 64));
      break;
    default:
      d = uint16_t(u16(block));
  }
  to.put(to.head, &d, 2);
}

// All that a block has once.
void put_numbers(Layout layout, const uint8_t* block, const Place& to) {
  if (kLayoutSizes[int(layout)].front)
    put_front(layout, block, to);
  else if (layout >= Layout::qg2_32)
    put_grouped_head(block, to, layout < Layout::qg8_32);
  else
    put_head(layout, block, to);
}

using Put = void (*)(const uint8_t* block, const Place& to);
// From q2k on.
constexpr Put kPuts[] = {put_q2k,        put_q3k,        put_iq4xs,      put_mxfp4,      put_iq2xxs,
                         put_iq2xs,      put_iq2s,       put_iq3xxs,     put_iq3s,       put_iq1s,
                         put_iq1m,       put_tq1,        put_tq2,        put_grouped<2>, put_grouped<2>,
                         put_grouped<2>, put_grouped<3>, put_grouped<3>, put_grouped<3>, put_grouped<4>,
                         put_grouped<4>, put_grouped<4>, put_grouped<8>, put_grouped<8>, put_grouped<8>,
                         put_grouped<4>, put_grouped<8>, put_nvfp4,      put_nvfp4};
constexpr int kHeads[] = {64, 32, 32, 0,  96, 32, 32, 96, 96, 32, 32, 32, 32, 48, 48,
                          48, 48, 48, 48, 48, 48, 48, 48, 48, 48, 0,  0,  0,  0};

}  // namespace

void pack_compact(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile,
                  int column) {
  const LayoutSize size = kLayoutSizes[int(layout)];
  const int which = int(layout) - int(Layout::q2k), head = kHeads[which];
  const int groups = size.elements / kGroup, bytes = (size.bytes - head) / groups;
  uint8_t* block = tile + size.front;
  for (int64_t k = 0; k < K; k += size.elements, row += block_bytes, block += size.bytes) {
    uint8_t* numbers = size.front ? tile : block;
    put_numbers(layout, row, {numbers, block, 0, column});
    for (int g = 0; g < groups; g++) kPuts[which](row, {numbers, block + head + g * bytes, g, column});
  }
}

}  // namespace kvasir
