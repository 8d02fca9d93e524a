// embed: rows of a packed weight back to f32. Few rows a step, so one element at a time. Include after vec.h.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

// Element 0 of 16 halves is the one wanted: load_f16 reads 16, which may pass the end of the weight.
KVASIR_INLINE float half_to_float(uint16_t h) {
  uint16_t lanes16[16] = {h};
  float out[16];
  store(out, load_f16(lanes16));
  return out[0];
}

}  // namespace kvasir::KVASIR_ISA

#include "generic/embed_scaled.inl"
#include "generic/embed_super.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE float bf16_to_float(uint16_t h) { return __builtin_bit_cast(float, uint32_t(h) << 16); }

// One group of 32 of column c from quantized bytes followed by 16 scales (and 16 mins).
KVASIR_INLINE void embed_group(const uint8_t* group, Layout layout, int c, float scale, float* out) {
  const int n_bytes = layout == Layout::q8 ? 512 : 256;
  uint16_t d, min = 0;
  __builtin_memcpy(&d, group + n_bytes + 2 * c, 2);
  if (layout == Layout::q4m) __builtin_memcpy(&min, group + n_bytes + 32 + 2 * c, 2);
  const float step = half_to_float(d), lowest = half_to_float(min);
  const int zero_point = layout == Layout::q8 ? 128 : layout == Layout::q4z ? 8 : 0;
  for (int k = 0; k < kGroup; k++) {
    int value;
    if (layout == Layout::q8) {
      value = group[64 * (k / 4) + 4 * c + k % 4];
    } else {
      const int byte = group[64 * (k / 8) + 4 * c + k % 4];
      value = k % 8 < 4 ? byte & 15 : byte >> 4;
    }
    out[k] = fma1(step, float(value - zero_point), lowest) * scale;
  }
}

KVASIR_INLINE void embed_halves(const uint8_t* tile, int c, int K, float scale, float* out) {
  const uint16_t* column = reinterpret_cast<const uint16_t*>(tile) + c;
  for (int k = 0; k < K; k += 16) {
    const int n = K - k < 16 ? K - k : 16;
    uint16_t halves[16] = {};
    for (int i = 0; i < n; i++) halves[i] = column[(k + i) * kTileCols];
    store_n(out + k, mul(load_f16(halves), set1(scale)), n);
  }
}

KVASIR_INLINE void embed_float(const uint8_t* tile, Layout layout, int c, int K, float scale, float* out) {
  for (int k = 0; k < K; k++) {
    if (layout == Layout::f32) {
      out[k] = reinterpret_cast<const float*>(tile)[k * kTileCols + c] * scale;
    } else {
      const uint16_t* pairs = reinterpret_cast<const uint16_t*>(tile);
      out[k] = bf16_to_float(pairs[(k / 2) * 2 * kTileCols + 2 * c + k % 2]) * scale;
    }
  }
}

void embed(const EmbedArgs& a) {
  const int64_t bytes = layout_bytes(a.layout, a.K);
  for (int64_t m = a.m0; m < a.m1; m++) {
    const uint8_t* tile = a.w + a.ids[m] / kTileCols * bytes;
    const int c = a.ids[m] % kTileCols;
    float* out = a.out + m * a.ldo;
    if (a.layout == Layout::f16) {
      embed_halves(tile, c, a.K, a.scale, out);
      continue;
    }
    if (is_float(a.layout)) {
      embed_float(tile, a.layout, c, a.K, a.scale, out);
      continue;
    }
    if (is_scaled(a.layout)) {
      embed_scaled(tile, a.layout, c, a.K, a.scale, out);
      continue;
    }
    if (is_compact(a.layout)) {
      embed_compact(tile, a.layout, c, a.K, a.scale, out);
      continue;
    }
    if (a.layout >= Layout::q4k) {
      embed_super(tile, a.layout, c, a.K, a.scale, out);
      continue;
    }
    const int64_t group_bytes = layout_bytes(a.layout, kGroup);
    for (int g = 0; g < a.K / kGroup; g++)
      embed_group(tile + g * group_bytes, a.layout, c, a.scale, out + g * kGroup);
  }
}

}  // namespace kvasir::KVASIR_ISA
