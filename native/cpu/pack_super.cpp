// Blocks of the formats whose integers lie in several planes, to the tiles of kernels.h (q4k and after).
#include "cpu/pack_super.h"

#include <cstring>

namespace kvasir {
namespace {

// A group of 32 elements of one row: integers without their zero point, and the numbers that follow them in a
// tile.
struct Group {
  uint8_t q[32];
  uint16_t halves[2];  // scale and min
  uint8_t steps[2];    // as the tile keeps them
};

uint32_t four(const uint8_t* q) {
  uint32_t v;
  std::memcpy(&v, q, 4);
  return v;
}
void put(uint8_t* p, uint32_t v) { std::memcpy(p, &v, 4); }

void put_low(const uint8_t* q, uint8_t* p, int column) {
  const uint32_t low = 0x0f0f0f0f;
  for (int j = 0; j < 4; j++)
    put(p + 64 * j + 4 * column, (four(q + 8 * j) & low) | (four(q + 8 * j + 4) & low) << 4);
}
void put_fifth(const uint8_t* q, uint8_t* p, int column) {
  uint32_t plane = 0;
  for (int r = 0; r < 8; r++) plane |= (four(q + 4 * r) >> 4 & 0x01010101) << r;
  put(p + 4 * column, plane);
}
void put_sixth(const uint8_t* q, uint8_t* p, int column) {
  for (int j = 0; j < 2; j++) {
    uint32_t plane = 0;
    for (int i = 0; i < 4; i++) plane |= (four(q + 16 * j + 4 * i) >> 4 & 0x03030303) << 2 * i;
    put(p + 64 * j + 4 * column, plane);
  }
}

void nibbles(const uint8_t* packed, uint8_t* q) {
  for (int i = 0; i < 16; i++) {
    q[i] = packed[i] & 15;
    q[16 + i] = packed[i] >> 4;
  }
}

// Q4_K and Q5_K: 6-bit scale and min of group g, from 12 bytes.
void k_steps(const uint8_t* s, int g, uint8_t* steps) {
  if (g < 4) {
    steps[0] = s[g] & 63;
    steps[1] = s[g + 4] & 63;
  } else {
    steps[0] = uint8_t((s[g + 4] & 15) | s[g - 4] >> 6 << 4);
    steps[1] = uint8_t(s[g + 4] >> 4 | s[g] >> 6 << 4);
  }
}

void read_k(const uint8_t* block, bool fifth, int g, Group& out) {
  const uint8_t *high = block + 16, *low = high + (fifth ? 32 : 0) + g / 2 * 32;
  for (int i = 0; i < 32; i++) {
    out.q[i] = low[i] >> 4 * (g % 2) & 15;
    if (fifth) out.q[i] |= uint8_t((high[i] >> g & 1) << 4);
  }
  k_steps(block + 4, g, out.steps);
}

void read_6k(const uint8_t* block, int g, Group& out) {
  const int half = g / 4, r = g % 4;
  const uint8_t *low = block + 64 * half + 32 * (r & 1), *high = block + 128 + 32 * half;
  for (int i = 0; i < 32; i++)
    out.q[i] = uint8_t((low[i] >> (r & 2 ? 4 : 0) & 15) | (high[i] >> 2 * r & 3) << 4);
  for (int i = 0; i < 2; i++) out.steps[i] = block[192 + 2 * g + i] ^ 0x80;
}

void read_5(const uint8_t* block, int head, Group& out) {
  nibbles(block + head + 4, out.q);
  const uint32_t high = four(block + head);
  for (int i = 0; i < 32; i++) out.q[i] |= uint8_t((high >> i & 1) << 4);
  std::memcpy(out.halves, block, size_t(head));
}

void put_halves(const Group& group, int n, uint8_t* p, int column) {
  for (int i = 0; i < n; i++) std::memcpy(p + 32 * i + 2 * column, &group.halves[i], 2);
}
void put_steps(const Group& group, uint8_t* p, int column) {
  for (int i = 0; i < 2; i++) p[16 * i + column] = group.steps[i];
}

void put_k(const uint8_t* block, bool fifth, uint8_t* tile, int column) {
  uint16_t d, min;
  std::memcpy(&d, block, 2);
  std::memcpy(&min, block + 2, 2);
  min ^= 0x8000;
  std::memcpy(tile + 2 * column, &d, 2);
  std::memcpy(tile + 32 + 2 * column, &min, 2);
  uint8_t* p = tile + 64;
  for (int g = 0; g < 8; g++, p += fifth ? 352 : 288) {
    Group group;
    read_k(block, fifth, g, group);
    put_low(group.q, p, column);
    if (fifth) put_fifth(group.q, p + 256, column);
    put_steps(group, p + (fifth ? 320 : 256), column);
  }
}

void put_6k(const uint8_t* block, uint8_t* tile, int column) {
  std::memcpy(tile + 2 * column, block + 208, 2);
  uint8_t* p = tile + 32;
  for (int g = 0; g < 8; g++, p += 416) {
    Group group;
    read_6k(block, g, group);
    put_low(group.q, p, column);
    put_sixth(group.q, p + 256, column);
    put_steps(group, p + 384, column);
  }
}

void put_5(const uint8_t* block, int halves, uint8_t* p, int column) {
  Group group;
  read_5(block, 2 * halves, group);
  put_low(group.q, p, column);
  put_fifth(group.q, p + 256, column);
  put_halves(group, halves, p + 320, column);
}

void put_iq4(const uint8_t* block, uint8_t* p, int column) {
  Group group;
  nibbles(block + 2, group.q);
  std::memcpy(group.halves, block, 2);
  put_low(group.q, p, column);
  put_halves(group, 1, p + 256, column);
}

}  // namespace

void pack_super(Layout layout, int64_t K, const uint8_t* row, int64_t block_bytes, uint8_t* tile,
                int column) {
  const LayoutSize size = kLayoutSizes[int(layout)];
  for (int64_t k = 0; k < K; k += size.elements, row += block_bytes, tile += size.bytes) {
    switch (layout) {
      case Layout::q4k:
      case Layout::q5k:
        put_k(row, layout == Layout::q5k, tile, column);
        break;
      case Layout::q6k:
        put_6k(row, tile, column);
        break;
      case Layout::q5z:
      case Layout::q5m:
        put_5(row, layout == Layout::q5m ? 2 : 1, tile, column);
        break;
      default:
        put_iq4(row, tile, column);
    }
  }
}

}  // namespace kvasir
