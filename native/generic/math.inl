// exp, tanh and the activations on 16 lanes. Polynomials are our own minimax fits, evaluated with explicit
// FMA, so that every level gives the same bits. Include after vec.h.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

// c[0] + c[1] x + ... by Horner's rule.
template <int N>
KVASIR_INLINE vf polynomial(const float (&c)[N], vf x) {
  vf y = set1(c[N - 1]);
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; i--) y = fma(y, x, set1(c[i]));
  return y;
}

// e^x for x <= 88.37, within 1 ulp: x = n ln2 + r, e^r = 1 + r + r^2 q(r), times 2^n. Exactly 0 below -87.33,
// where results leave the normal range; NaN for NaN.
KVASIR_INLINE vf exp_bounded(vf x) {
  constexpr float kQ[] = {5.000000097e-01f, 1.666651718e-01f, 4.166620064e-02f, 8.369088098e-03f,
                          1.395083534e-03f};
  const vf magic = set1(0x1.8p23f);
  const vf t = fma(x, set1(0x1.715476p+0f), magic);  // the low bits of t hold n
  const vf n = sub(t, magic);
  const vf r = fnma(n, set1(-0x1.05c61p-29f), fnma(n, set1(0x1.62e43p-1f), x));
  const vf y = add(fma(mul(r, r), polynomial(kQ, r), r), set1(1.0f));
  const vf power = from_bits(addi(shl<23>(bits(t)), set1i(127 << 23)));
  return select(lt(x, set1(-87.33f)), zero(), mul(y, power));
}

// 2^x for x < 127.5, within 2 ulp; 2^-125 for all x below -125. NaN for NaN.
KVASIR_INLINE vf exp2_bounded(vf x) {
  constexpr float kP[] = {1.0f, 0.693146978f, 0.240222421f, 0.0555073373f, 0.00967151273f, 0.00132647273f};
  const vf magic = set1(0x1.8p23f + 127.0f);
  x = vmax(set1(-125.0f), x);
  const vf t = add(x, magic);  // the low bits of t hold n + 127
  return mul(polynomial(kP, sub(x, sub(t, magic))), from_bits(shl<23>(bits(t))));
}

// e^x; infinity above 88.37.
KVASIR_INLINE vf exp(vf x) { return select(lt(set1(88.37f), x), set1(__builtin_inff()), exp_bounded(x)); }

KVASIR_INLINE vf tanh(vf x) {
  constexpr float kP[] = {-3.333332944e-01f, 1.333315218e-01f,  -5.393994250e-02f,
                          2.166340287e-02f,  -8.085626057e-03f, 2.059580562e-03f};
  const vi sign = andi(bits(x), set1i(INT32_MIN));
  const vf a = from_bits(andi(bits(x), set1i(0x7fffffff)));
  const vf a2 = mul(a, a);
  const vf small = fma(mul(a, a2), polynomial(kP, a2), a);
  const vf large = sub(set1(1.0f), div(set1(2.0f), add(exp(add(a, a)), set1(1.0f))));
  return from_bits(ori(bits(select(lt(a, set1(0.65f)), small, large)), sign));
}

// cap * tanh(x / cap)
KVASIR_INLINE vf softcap(vf x, vf cap) { return mul(cap, tanh(div(x, cap))); }

KVASIR_INLINE vf sigmoid_times(vf x, vf u) { return div(x, add(set1(1.0f), exp(sub(zero(), u)))); }

// ln(1 + e^x) = max(x, 0) + ln(1 + y) with y = e^-|x|, ln(1 + y) = 2 atanh(s), s = y / (2 + y) <= 1/3.
KVASIR_INLINE vf softplus(vf x) {
  constexpr float kP[] = {1.0f,      1.0f / 3,  1.0f / 5,  1.0f / 7, 1.0f / 9,
                          1.0f / 11, 1.0f / 13, 1.0f / 15, 1.0f / 17};
  const vf y = exp_bounded(from_bits(ori(bits(x), set1i(INT32_MIN))));
  const vf s = div(y, add(set1(2.0f), y));
  return fma(add(s, s), polynomial(kP, mul(s, s)), vmax(zero(), x));
}

KVASIR_INLINE vf silu(vf x) { return sigmoid_times(x, x); }

// x/2 (1 + tanh(v)) = x / (1 + e^-2v) with v = sqrt(2/pi) (x + 0.044715 x^3)
KVASIR_INLINE vf gelu_tanh(vf x) {
  const vf cubic = fma(mul(x, set1(0.044715f)), mul(x, x), x);
  return sigmoid_times(x, mul(set1(1.5957691216f), cubic));
}

// x Phi(x) with Phi(-|x|) = erfc(z) / 2, z = |x| / sqrt2, erfc(z) = e^-z^2 t P(t), t = 1 / (1 + 0.35 z).
KVASIR_INLINE vf gelu(vf x) {
  constexpr float kP[] = {1.974837784e-01f,  1.971383545e-01f, 1.879023989e-01f,  1.511862104e-01f,
                          1.460420946e-01f,  8.701896729e-02f, -2.770594638e-02f, 1.814614764e-01f,
                          -1.589284035e-01f, 3.840107660e-02f};
  const vf z = mul(from_bits(andi(bits(x), set1i(0x7fffffff))), set1(0.70710678118f));
  const vf t = div(set1(1.0f), fma(set1(0.35f), z, set1(1.0f)));
  const vf z2 = mul(z, z);
  const vf rest = fnma(z, z, z2);  // z2 - z * z, the rounding error of z2
  const vf e = exp_bounded(sub(zero(), z2));
  const vf tail = mul(mul(set1(0.5f), fma(e, rest, e)), mul(t, polynomial(kP, t)));
  // The tail is 0 long before z2 overflows; then rest is NaN and must not reach the result.
  const vf phi = select(lt(set1(100.0f), z2), zero(), tail);
  return mul(x, select(lt(x, zero()), phi, sub(set1(1.0f), phi)));
}

KVASIR_INLINE vf activate(Act act, vf x) {
  switch (act) {
    case Act::silu:
      return silu(x);
    case Act::gelu_tanh:
      return gelu_tanh(x);
    case Act::gelu:
      return gelu(x);
    case Act::sigmoid:
      return sigmoid_times(set1(1.0f), x);
    default:
      return x;
  }
}

// act(gate) * up
KVASIR_INLINE vf gated(Act act, vf gate, vf up) {
  if (act != Act::clamped_swiglu) return mul(activate(act, gate), up);
  const vf g = vmin(set1(7.0f), gate), u = vmax(set1(-7.0f), vmin(set1(7.0f), up));
  return mul(sigmoid_times(g, mul(set1(1.702f), g)), add(u, set1(1.0f)));
}

}  // namespace kvasir::KVASIR_ISA
