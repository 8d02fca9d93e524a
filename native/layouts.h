// How packed weights lie in memory (exec/cpu/layouts.py has their names and sizes).
#pragma once
#include <stdint.h>

#include "enums.h"

namespace kvasir {

constexpr int kTileCols = 16;  // columns of one packed weight tile
constexpr int kGroup = 32;     // elements of one quantization group of the weights

// Packed weights are kept on disk under this number: raise it whenever the bytes of a layout below, or the
// order in which matrices are packed together, change. Files of another number are packed again.
constexpr int kLayoutVersion = 2;

// Weight layouts. Tile t holds columns (output features) 16t .. 16t+15; missing columns are zero.
// clang-format off
//  q4z: per group of 32 k: 256 B nibbles, 16 fp16 scales; value = scale * (nibble - 8)               [Q4_0]
//       nibbles: 4 chunks of 64 B; byte 4*c+b of chunk j is of column c: low k = 8j+b, high k = 8j+4+b
//  q4m: per group of 32 k: 256 B nibbles, 16 fp16 scales, 16 mins; value = scale * nibble + min      [Q4_1]
//  q8:  per group of 32 k: 512 B int8 + 128 (unsigned), 16 fp16 scales; value = scale * (byte - 128) [Q8_0]
//       8 chunks of 64 B; byte 4*c+b of chunk j belongs to column c, k = 4j+b
//  q4k: per 256 k: 16 fp16 d, 16 fp16 e; then 8 groups of 256 B nibbles, 16 bytes s, 16 bytes m
//       value = d * s * nibble + e * m (e is the negated file value)                                 [Q4_K]
//  q5k: as q4k, with 64 B of fifth bits after the nibbles: bit i of byte 4*c+b is of k = 4i+b        [Q5_K]
//  q6k: per 256 k: 16 fp16 d; then 8 groups of 256 B nibbles, 128 B of upper bits, 2 x 16 bytes s + 128
//       (for the 16 lower and upper k); bits 2i, 2i+1 of byte 4*c+b of chunk j: k = 16j+4i+b
//       value = d * s * (six bits - 32)                                                              [Q6_K]
//  q5z: as q4z, with 64 B of fifth bits after the nibbles; value = scale * (five bits - 16)          [Q5_0]
//  q5m: as q4m, with 64 B of fifth bits after the nibbles                                            [Q5_1]
//  iq4: as q4z; value = scale * IQ4_NL's code                                                        [IQ4_NL]
//  q8s: as q8, with 2 x 16 f32 scales (for the 16 lower and upper k): any format without mins
//  q8m: as q8s, then as many mins
//  bf16: per pair of k: 16 columns x 2 (k, k+1) bf16; K padded to even with zeros; summed odd k first
//  f32: per k: 16 columns f32; f16: the same in 16 bits
// Compact layouts, read a group at a time to 8 bits (generic/compact.inl); after a head of 16 fp16 d, 8
// groups of 32 k. Planes of n bits: bits n*i of byte 4*c+b of chunk j belong to k = 4*(8/n*j + i) + b.
//  q2k: also 16 fp16 e; two bits, 2 x 16 bytes s + 16 m; value = d * s * code + e * m                [Q2_K]
//  q3k: two bits, one bit, 2 x 16 bytes s + 32; value = d * s * (code - 4)                           [Q3_K]
//  iq4xs: nibbles, 16 bytes s + 32; value = d * s * IQ4_NL's code                                    [IQ4_XS]
//  mxfp4: no head; nibbles, 16 bytes e; value = 2^(e - 128) * kFp4Values[nibble]                     [MXFP4]
//  iq2xxs, iq2xs, iq2s, iq3xxs, iq3s: codes (grid_words.inl), 64 B of signs: bit 4*c+b of eight bytes j is
//       of k = 4j+b. Steps s are nibbles of 16 columns, behind the d of the head for two groups each where
//       the format has one a group, else behind the signs for its two runs.
//       value = d * (2s + 1) * (1/8, iq3xxs: 1/4, iq3s: 1) * grid's
//  iq1s: codes, 16 x 16 bits: four times 3 bits above them, 3 bits s, a sign of the eighth that is added
//  iq1m: codes, 16 x 4 x (3 bits, sign), 16 bytes with two s
//  tq2: two bits; value = d * (digit - 1)                                                            [TQ2_0]
//  tq1: 13 x 64 bytes for the block, five digits of base 3 a byte; value = d * (digit - 1)           [TQ1_0]
//  qgB_G: B bits in groups of G k; a head of 16 x 16 bits of scales, then 16 bytes; planes of B bits (3: of
//       two, then of one). A scale is an f32 of at most 11 bits: the three uppermost bits are those of the
//       byte, then the 16 bits, then 13 zeros. The byte's lower five are 16 - zero (8 bits: the zero is 128).
//       value = scale * (code - zero)                                                                [QGB_G]
//  q4c: in front of a tile 16 f32 scales and 16 bytes of 16 - zero; then nibbles                     [Q4C]
//  q8c: in front of a tile 16 f32 scales; then as q8; value = scale * (byte - 128)                   [Q8C]
//  nvfp4: in front of a tile 16 f32 f; nibbles, 2 x 16 bytes e4m3 (for the 16 lower and upper k)
//       value = (e4m3 * f) * kFp4Values[nibble]; nvfp4d: (e4m3 / f)                                 [NVFP4]
// Scaled layouts, whose codes become bf16 (generic/linear_scaled.inl).
//  f8c: in front of a tile 16 f32 scales; per k 16 bytes e4m3                                        [F8C]
//  f8_G: per G k 16 f32 scales, then as f8c                                                         [F8_G]
//  nf4, fp4: per 64 k 16 f32 scales, then 8 chunks of 64 B: byte 4*c+b of chunk j is of column c, low nibble
//       k = 8j + 2b, high k = 8j + 2b + 1; value = scale * kNf4Values (kFp4bValues)                [NF4, FP4]
// clang-format on
KVASIR_ENUM(Layout, f32, bf16, f16, q8, q4z, q4m, q4k, q5k, q6k, q5z, q5m, iq4, q8s, q8m, q2k, q3k, iq4xs,
            mxfp4, iq2xxs, iq2xs, iq2s, iq3xxs, iq3s, iq1s, iq1m, tq1, tq2, qg2_32, qg2_64, qg2_128, qg3_32,
            qg3_64, qg3_128, qg4_32, qg4_64, qg4_128, qg8_32, qg8_64, qg8_128, q4c, q8c, nvfp4, nvfp4d, f8c,
            f8_32, f8_128, nf4, fp4);
struct LayoutSize {
  int elements, bytes;  // of a row's run, and of the 16 columns that hold it
  int front = 0;        // bytes of a tile before its first run
};
constexpr LayoutSize kLayoutSizes[kLayouts] = {
    {1, 64},       {2, 64},       {1, 32},     {32, 544},   {32, 288},     {32, 320},     {256, 2368},
    {256, 2880},   {256, 3360},   {32, 352},   {32, 384},   {32, 288},     {32, 640},     {32, 768},
    {256, 1344},   {256, 1824},   {256, 2208}, {32, 272},   {256, 1120},   {256, 1248},   {256, 1312},
    {256, 1632},   {256, 1760},   {256, 800},  {256, 928},  {256, 864},    {256, 1056},   {32, 176},
    {64, 304},     {128, 560},    {32, 240},   {64, 432},   {128, 816},    {32, 304},     {64, 560},
    {128, 1072},   {32, 560},     {64, 1072},  {128, 2096}, {32, 256, 80}, {32, 512, 64}, {32, 288, 64},
    {32, 288, 64}, {32, 512, 64}, {32, 576},   {128, 2112}, {64, 576},     {64, 576}};
constexpr bool is_float(Layout layout) { return layout <= Layout::f16; }
constexpr bool is_scaled(Layout layout) { return layout >= Layout::f8c; }
constexpr bool is_compact(Layout layout) { return layout >= Layout::q2k && !is_scaled(layout); }
// Compact ones of integer codes that have kernels of their own (generic/linear_grouped.inl).
constexpr bool is_grouped(Layout layout) { return layout >= Layout::qg4_32 && layout <= Layout::q8c; }
constexpr int64_t layout_bytes(Layout layout, int64_t K) {  // of a tile
  const LayoutSize size = kLayoutSizes[int(layout)];
  return size.front + (K + size.elements - 1) / size.elements * size.bytes;
}
constexpr int kMaxCompactBlock = 512;  // of the rows that meet a compact layout

// What the 4-bit codes of iq4 mean.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// And twice those of e2m1.
constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// Of NF4 (quantiles of a normal distribution, the largest 1) and of FP4 as bitsandbytes has it (e2m1 / 12).
constexpr float kNf4Values[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};
constexpr float kFp4bValues[16] = {0.0f,
                                   0.0052083334885537624f,
                                   0.6666666865348816f,
                                   1.0f,
                                   0.3333333432674408f,
                                   0.5f,
                                   0.1666666716337204f,
                                   0.25f,
                                   0.0f,
                                   -0.0052083334885537624f,
                                   -0.6666666865348816f,
                                   -1.0f,
                                   -0.3333333432674408f,
                                   -0.5f,
                                   -0.1666666716337204f,
                                   -0.25f};
constexpr uint16_t bf16_of(float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

}  // namespace kvasir
