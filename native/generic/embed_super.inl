// Elements of the layouts of linear_formats.inl, one at a time, for embed.inl. Include after half_to_float.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE float half_at(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return half_to_float(h);
}
KVASIR_INLINE float float_at(const uint8_t* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

// Of column c and one run of a group: value = scale * integer + min.
struct Run {
  float scale, min;
};

KVASIR_INLINE Run run_of(const uint8_t* head, const uint8_t* p, Layout layout, int c, int half) {
  switch (layout) {
    case Layout::q4k:
      return {half_at(head + 2 * c) * p[256 + c], half_at(head + 32 + 2 * c) * p[272 + c]};
    case Layout::q5k:
      return {half_at(head + 2 * c) * p[320 + c], half_at(head + 32 + 2 * c) * p[336 + c]};
    case Layout::q6k:
      return {half_at(head + 2 * c) * (p[384 + 16 * half + c] - 128), 0};
    case Layout::q5z:
      return {half_at(p + 320 + 2 * c), 0};
    case Layout::q5m:
      return {half_at(p + 320 + 2 * c), half_at(p + 352 + 2 * c)};
    case Layout::iq4:
      return {half_at(p + 256 + 2 * c), 0};
    case Layout::q8m:
      return {float_at(p + 512 + 64 * half + 4 * c), float_at(p + 640 + 64 * half + 4 * c)};
    default:
      return {float_at(p + 512 + 64 * half + 4 * c), 0};
  }
}

// The integer of column c and element k of a group.
KVASIR_INLINE int integer_of(const uint8_t* p, Layout layout, int c, int k) {
  const int r = k / 4, byte = 4 * c + k % 4;
  if (layout == Layout::q8s || layout == Layout::q8m) return p[64 * r + byte] - 128;
  const int low = p[64 * (r / 2) + byte] >> 4 * (r % 2) & 15;
  if (layout == Layout::iq4) return kIq4Values[low];
  if (layout == Layout::q4k) return low;
  if (layout == Layout::q6k) return (low | (p[256 + 64 * (r / 4) + byte] >> 2 * (r % 4) & 3) << 4) - 32;
  return (low | (p[256 + byte] >> r & 1) << 4) - (layout == Layout::q5z ? 16 : 0);
}

KVASIR_INLINE void embed_super(const uint8_t* tile, Layout layout, int c, int64_t K, float scale,
                               float* out) {
  const LayoutSize size = kLayoutSizes[int(layout)];
  const int groups = size.elements / kGroup;
  const int head_bytes = groups == 1             ? 0
                         : layout == Layout::q6k ? 32
                                                 : 64,
            bytes = (size.bytes - head_bytes) / groups;
  for (int64_t g = 0; g < K / kGroup; g++) {
    const uint8_t* head = tile + g / groups * size.bytes;
    const uint8_t* p = head + head_bytes + g % groups * bytes;
    const Run runs[2] = {run_of(head, p, layout, c, 0), run_of(head, p, layout, c, 1)};
    for (int k = 0; k < kGroup; k++)
      out[g * kGroup + k] =
          fma1(runs[k / 16].scale, float(integer_of(p, layout, c, k)), runs[k / 16].min) * scale;
  }
}

}  // namespace kvasir::KVASIR_ISA
