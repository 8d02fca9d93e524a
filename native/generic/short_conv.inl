// short_conv: each channel by itself, token after token. Include after vec.h.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

// Per channel and token: mul with the oldest of `seen`, an FMA for each that follows, mul with c.
KVASIR_INLINE void conv_channels(const ShortConvArgs& a, int c, int count) {
  const int last = a.n_taps - 1;
  vf seen[kMaxTaps];
  for (int j = 0; j < last; j++)
    seen[j] = a.before ? load_n(a.before + int64_t(j) * a.width + c, count) : zero();
  for (int64_t t = 0; t < a.n; t++) {
    const float* x = a.x + t * a.ldx + c;
    seen[last] = mul(load_n(x, count), load_n(x + 2 * int64_t(a.width), count));
    vf sum = mul(load_n(a.taps + c, count), seen[0]);
    for (int j = 1; j <= last; j++) sum = fma(load_n(a.taps + int64_t(j) * a.width + c, count), seen[j], sum);
    store_n(a.out + t * a.ldo + c, mul(load_n(x + a.width, count), sum), count);
    for (int j = 0; j < last; j++) seen[j] = seen[j + 1];
  }
  for (int j = 0; j < last; j++) store_n(a.after + int64_t(j) * a.width + c, seen[j], count);
}

void short_conv(const ShortConvArgs& a) {
  for (int c = a.c0; c < a.c1; c += 16) conv_channels(a, c, a.c1 - c < 16 ? a.c1 - c : 16);
}

}  // namespace kvasir::KVASIR_ISA
