#include "cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cpu/pack_compact.h"
#include "cpu/pack_scaled.h"
#include "cpu/pack_super.h"

namespace kvasir {
namespace {

struct FormatSize {
  int elements, bytes;
};
constexpr FormatSize kSizes[] = {
    {1, 4},     {1, 2},     {1, 2},     {32, 34},   {32, 18},   {32, 20},   {32, 22},   {32, 24},
    {256, 144}, {256, 176}, {256, 210}, {32, 18},   {256, 84},  {256, 110}, {256, 136}, {32, 17},
    {256, 66},  {256, 74},  {256, 82},  {256, 98},  {256, 110}, {256, 50},  {256, 56},  {256, 54},
    {256, 66},  {32, 37},   {64, 69},   {128, 133}, {32, 37},   {64, 69},   {128, 133}, {32, 37},
    {64, 69},   {128, 133}, {32, 37},   {64, 69},   {128, 133}, {32, 37},   {32, 37},   {32, 22},
    {32, 22},   {32, 36},   {32, 36},   {128, 132}, {64, 36},   {64, 36}};
// The layout of each quantized format, from q8_0.
constexpr Layout kLayoutOf[] = {
    Layout::q8,      Layout::q4z,    Layout::q4m,    Layout::q5z,     Layout::q5m,    Layout::q4k,
    Layout::q5k,     Layout::q6k,    Layout::iq4,    Layout::q2k,     Layout::q3k,    Layout::iq4xs,
    Layout::mxfp4,   Layout::iq2xxs, Layout::iq2xs,  Layout::iq2s,    Layout::iq3xxs, Layout::iq3s,
    Layout::iq1s,    Layout::iq1m,   Layout::tq1,    Layout::tq2,     Layout::qg2_32, Layout::qg2_64,
    Layout::qg2_128, Layout::qg3_32, Layout::qg3_64, Layout::qg3_128, Layout::qg4_32, Layout::qg4_64,
    Layout::qg4_128, Layout::qg8_32, Layout::qg8_64, Layout::qg8_128, Layout::q4c,    Layout::q8c,
    Layout::nvfp4,   Layout::nvfp4d, Layout::f8c,    Layout::f8_32,   Layout::f8_128, Layout::nf4,
    Layout::fp4};

uint32_t word(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
void put(uint8_t* p, uint32_t v) { std::memcpy(p, &v, 4); }

uint16_t float_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffff) > 0x7f800000) return uint16_t(u >> 16 | 0x40);
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// One GGUF block of 32 to the nibble order of q4z / q4m: low k = 8j + b, high k = 8j + 4 + b.
void put_nibbles(const uint8_t* qs, uint8_t* group, int column) {
  const uint32_t low = 0x0f0f0f0f, high = 0xf0f0f0f0;
  const uint32_t a = word(qs), b = word(qs + 4), c = word(qs + 8), d = word(qs + 12);
  uint8_t* p = group + 4 * column;
  put(p, (a & low) | (b & low) << 4);
  put(p + 64, (c & low) | (d & low) << 4);
  put(p + 128, (a >> 4 & low) | (b & high));
  put(p + 192, (c >> 4 & low) | (d & high));
}

void put_quantized(const PackArgs& a, const uint8_t* row, uint8_t* tile, int column) {
  const int64_t groups = a.K / kGroup;
  const int64_t stride = tile_bytes(a.layout, a.K) / groups;
  for (int64_t g = 0; g < groups; g++, tile += stride) {
    if (a.layout == Layout::q8) {
      const uint8_t* block = row + g * 34;
      for (int j = 0; j < 8; j++) put(tile + 64 * j + 4 * column, word(block + 2 + 4 * j) ^ 0x80808080u);
      std::memcpy(tile + 512 + 2 * column, block, 2);
    } else if (a.layout == Layout::q4z) {
      const uint8_t* block = row + g * 18;
      put_nibbles(block + 2, tile, column);
      std::memcpy(tile + 256 + 2 * column, block, 2);
    } else {
      const uint8_t* block = row + g * 20;
      put_nibbles(block + 4, tile, column);
      std::memcpy(tile + 256 + 2 * column, block, 2);
      std::memcpy(tile + 288 + 2 * column, block + 2, 2);
    }
  }
}

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = float(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

float half_at(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return half_to_float(h);
}

void decode_block(Format format, const uint8_t* p, float* out) {
  const float d = half_at(p);
  if (format == Format::q8_0) {
    for (int i = 0; i < 32; i++) out[i] = d * float(int8_t(p[2 + i]));
  } else if (format == Format::q4_0) {
    for (int i = 0; i < 16; i++) {
      out[i] = d * float((p[2 + i] & 15) - 8);
      out[i + 16] = d * float((p[2 + i] >> 4) - 8);
    }
  } else {
    const float m = half_at(p + 2);
    for (int i = 0; i < 16; i++) {
      out[i] = d * float(p[4 + i] & 15) + m;
      out[i + 16] = d * float(p[4 + i] >> 4) + m;
    }
  }
}

void decode_row(Format format, const uint8_t* row, int64_t K, float* out) {
  switch (format) {
    case Format::f32:
      std::memcpy(out, row, size_t(K) * 4);
      return;
    case Format::f16:
      for (int64_t k = 0; k < K; k++) out[k] = half_at(row + 2 * k);
      return;
    case Format::bf16:
      for (int64_t k = 0; k < K; k++)
        out[k] = std::bit_cast<float>(uint32_t(row[2 * k] | row[2 * k + 1] << 8) << 16);
      return;
    default:
      for (int64_t k = 0; k < K; k += 32) decode_block(format, row + k / 32 * row_bytes(format, 32), out + k);
  }
}

void put_halves(const PackArgs& a, const uint8_t* row, uint8_t* tile, int column) {
  for (int64_t k = 0; k < a.K; k++) std::memcpy(tile + 2 * (k * kTileCols + column), row + 2 * k, 2);
}

void put_floats(const PackArgs& a, const uint8_t* row, uint8_t* tile, int column, float* buffer) {
  decode_row(a.format, row, a.K, buffer);
  if (a.layout == Layout::f32) {
    float* out = reinterpret_cast<float*>(tile) + column;
    for (int64_t k = 0; k < a.K; k++) out[k * kTileCols] = buffer[k];
  } else {
    uint16_t* out = reinterpret_cast<uint16_t*>(tile) + 2 * column;
    for (int64_t k = 0; k < a.K; k++) out[k / 2 * 2 * kTileCols + k % 2] = float_to_bf16(buffer[k]);
  }
}

void pack_tile(const PackArgs& a, int64_t t, float* buffer) {
  uint8_t* tile = a.out + (a.tile_first + t * a.tile_step) * tile_bytes(a.layout, a.K);
  const int64_t columns = std::min<int64_t>(kTileCols, a.N - t * kTileCols);
  for (int c = 0; c < columns; c++) {
    const uint8_t* row = a.rows + (t * kTileCols + c) * row_bytes(a.format, a.K);
    if (a.layout == Layout::f16)
      put_halves(a, row, tile, c);
    else if (is_float(a.layout))
      put_floats(a, row, tile, c, buffer);
    else if (is_scaled(a.layout))
      pack_scaled(a.layout, a.K, row, kSizes[int(a.format)].bytes, tile, c);
    else if (is_compact(a.layout))
      pack_compact(a.layout, a.K, row, kSizes[int(a.format)].bytes, tile, c);
    else if (a.layout >= Layout::q4k)
      pack_super(a.layout, a.K, row, kSizes[int(a.format)].bytes, tile, c);
    else
      put_quantized(a, row, tile, c);
  }
}

struct PackWork {
  const PackArgs& args;
  Pool& pool;
};

void pack_share(void* context, int thread) {
  const auto& work = *static_cast<PackWork*>(context);
  const int64_t tiles = (work.args.N + kTileCols - 1) / kTileCols, n = work.pool.size();
  std::vector<float> buffer(size_t(work.args.K));
  for (int64_t t = tiles * thread / n; t < tiles * (thread + 1) / n; t++)
    pack_tile(work.args, t, buffer.data());
}

}  // namespace

int64_t row_bytes(Format format, int64_t K) {
  const FormatSize size = kSizes[int(format)];
  return K / size.elements * size.bytes;
}

int64_t tile_bytes(Layout layout, int64_t K) { return layout_bytes(layout, K); }

bool packs(Format format, Layout layout) {
  if (layout == Layout::f16) return format == Format::f16;
  if (is_float(layout)) return format <= Format::q4_1;
  return format >= Format::q8_0 && kLayoutOf[int(format) - int(Format::q8_0)] == layout;
}

void pack(Pool& pool, const PackArgs& args) {
  PackWork work{args, pool};
  pool.run(pack_share, &work);
}

}  // namespace kvasir
