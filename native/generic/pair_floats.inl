// Pairs of bf16 products for levels without vdpbf16ps: every number is kept as f32, whose FMA gives the same
// bits while subnormals are flushed. Include after vec.h and kv.inl.
#pragma once
#include "generic/kv.inl"

namespace kvasir::KVASIR_ISA {

// A number rounded to bf16, as the left factor of a product, and an element of a tile packed for many query
// vectors. Columns of 16 of a packed row lie kPackedColumns elements apart.
using Rounded = float;
struct Packed {
  float value;
};
constexpr int kPackedColumns = 16;

// Two rows of 16 right factors: those of an even place of the sum and of the place after it.
struct Pair {
  vf low, high;
};

KVASIR_INLINE void store_rounded(Rounded* p, vf x) { store(p, from_bits(shl<16>(bf16_bits(x)))); }

template <class T>
KVASIR_INLINE Pair load_pair(const T* low, const T* high) {
  return {load_kv(low), load_kv(high)};
}
template <class T>
KVASIR_INLINE Pair load_neighbours(const T* low) {
  return load_pair(low, low + 16);
}
KVASIR_INLINE Pair load_pair(const Packed* low, const Packed* high) {
  return {load(&low->value), load(&high->value)};
}
KVASIR_INLINE void store_packed(Packed* low, Packed* high, Pair pair) {
  store(&low->value, pair.low);
  store(&high->value, pair.high);
}
KVASIR_INLINE Pair only_low(Pair pair) { return {pair.low, zero()}; }
KVASIR_INLINE Pair only_high(Pair pair) { return {zero(), pair.high}; }

// acc + a[1] * high, then + a[0] * low.
KVASIR_INLINE vf pair_dot(vf acc, const Rounded* a, const Pair& pair) {
  return fma(set1(a[0]), pair.low, fma(set1(a[1]), pair.high, acc));
}

}  // namespace kvasir::KVASIR_ISA
