// Elements of the scaled layouts (layouts.h), one at a time, for embed.inl. Include after half_to_float.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE float e4m3_to_float(uint8_t b) {
  uint8_t lanes16[16] = {b};
  float out[16];
  store(out, load_e4m3_256th(lanes16));
  return out[0] * 256;
}

// Of column c and element k behind the scales of a block.
KVASIR_INLINE float scaled_element(const uint8_t* p, Layout layout, int c, int k) {
  if (layout != Layout::nf4 && layout != Layout::fp4) return e4m3_to_float(p[16 * k + c]);
  const int code = p[64 * (k / 8) + 4 * c + k % 8 / 2] >> 4 * (k % 2) & 15;
  const uint32_t level = bf16_of(layout == Layout::nf4 ? kNf4Values[code] : kFp4bValues[code]);
  return __builtin_bit_cast(float, level << 16);
}

KVASIR_INLINE void embed_scaled(const uint8_t* tile, Layout layout, int c, int64_t K, float scale,
                                float* out) {
  const LayoutSize size = kLayoutSizes[int(layout)];
  for (int64_t b = 0; b < K / size.elements; b++) {
    const uint8_t* p = tile + size.front + b * size.bytes;
    float step;
    __builtin_memcpy(&step, (size.front ? tile : p) + 4 * c, 4);
    for (int k = 0; k < size.elements; k++)
      *out++ = scaled_element(p + (size.front ? 0 : 64), layout, c, k) * step * scale;
  }
}

}  // namespace kvasir::KVASIR_ISA
