// short_conv: each channel by itself, token after token. Include after vec.h.
#pragma once
#include "generic/level.inl"
#include "generic/math.inl"

namespace kvasir::KVASIR_ISA {

// Per channel and token: mul with the oldest of `seen`, an FMA for each that follows; then mul with c, or the
// bias and silu.
template <bool kGated>
KVASIR_INLINE void conv_channels(const ShortConvArgs& a, int c, int count) {
  const int last = a.n_taps - 1;
  const vf bias = a.bias ? load_n(a.bias + c, count) : zero();
  vf seen[kMaxTaps];
  for (int j = 0; j < last; j++)
    seen[j] = a.before ? load_n(a.before + int64_t(j) * a.width + c, count) : zero();
  for (int64_t t = 0; t < a.n; t++) {
    const float* x = a.x + t * a.ldx + c;
    seen[last] = load_n(x, count);
    if (kGated) seen[last] = mul(seen[last], load_n(x + 2 * int64_t(a.width), count));
    vf sum = mul(load_n(a.taps + c, count), seen[0]);
    for (int j = 1; j <= last; j++) sum = fma(load_n(a.taps + int64_t(j) * a.width + c, count), seen[j], sum);
    sum = kGated ? mul(load_n(x + a.width, count), sum) : silu(add(sum, bias));
    store_n(a.out + t * a.ldo + c, sum, count);
    for (int j = 0; j < last; j++) seen[j] = seen[j + 1];
  }
  for (int j = 0; j < last; j++) store_n(a.after + int64_t(j) * a.width + c, seen[j], count);
}

void short_conv(const ShortConvArgs& a) {
  for (int c = a.c0; c < a.c1; c += 16) {
    const int count = a.c1 - c < 16 ? a.c1 - c : 16;
    if (a.gated) {
      conv_channels<true>(a, c, count);
    } else {
      conv_channels<false>(a, c, count);
    }
  }
}

}  // namespace kvasir::KVASIR_ISA
