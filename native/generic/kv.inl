// Where a token's K and V lie in the blocks, and the types of their elements. Include after vec.h.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

constexpr int kSub = 16;                     // positions of one K subtile: the lanes of a score vector
constexpr float kSmallestScale = 0x1p-100f;  // scales below are zero, so that their inverses are finite
constexpr uint16_t kNanScale = 0x7fc0;

struct E4m3 {
  uint8_t code;
};
struct E5m2 {
  uint8_t code;
};

// Elements of the cache. kLargest: what the largest magnitude of a head with a scale becomes. kUnit: what
// load_kv gives is to be multiplied by it; a power of two that only scaled types have.
template <class T>
struct Element {
  static constexpr bool kScaled = false;
  static constexpr float kLargest = 0.0f, kUnit = 1.0f;
};
template <>
struct Element<int8_t> {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 127.0f, kUnit = 1.0f;
};
template <>
struct Element<E4m3> {
  static constexpr bool kScaled = true;
  static constexpr float kLargest = 448.0f, kUnit = 256.0f;
};

KVASIR_INLINE vf load_kv(const float* p) { return load(p); }
KVASIR_INLINE vf load_kv(const uint16_t* p) { return load_bf16(p); }
KVASIR_INLINE vf load_kv(const int8_t* p) { return load_i8(p); }
KVASIR_INLINE vf load_kv(const E4m3* p) { return load_e4m3_256th(&p->code); }
KVASIR_INLINE vf load_kv(const E5m2* p) { return load_e5m2(&p->code); }

// f(element of the type).
template <class F>
KVASIR_INLINE void with_element(KvType type, F f) {
  switch (type) {
    case KvType::f32:
      return f(float());
    case KvType::bf16:
      return f(uint16_t());
    case KvType::int8:
      return f(int8_t());
    case KvType::fp8_e4m3:
      return f(E4m3());
    case KvType::fp8_e5m2:
      return f(E5m2());
  }
}

// Codes of an fp8 type, nearest even. Finite numbers saturate, others become NaN.
template <int kMantissa, int kMinExponent>
KVASIR_INLINE vi fp8_bits(vf x, float largest, float least_normal, float per_step) {
  constexpr int kDrop = 23 - kMantissa, kRebias = (126 + kMinExponent) << kMantissa;
  const vi sign = andi(shr<24>(bits(x)), set1i(0x80));
  const vf a = from_bits(andi(bits(x), set1i(0x7fffffff)));
  const vi u = bits(vmin(a, set1(largest)));
  const vi odd = andi(shr<kDrop>(u), set1i(1));
  const vi normal = subi(shr<kDrop>(addi(addi(u, set1i((1 << (kDrop - 1)) - 1)), odd)), set1i(kRebias));
  const vi small = to_int(mul(a, set1(per_step)));
  const vf code = select(lt(a, set1(least_normal)), from_bits(small), from_bits(normal));
  const vf finite = select(lt(a, set1(__builtin_inff())), code, from_bits(set1i(0x7f)));
  return ori(sign, bits(finite));
}

// 16 elements, rounded to nearest even.
KVASIR_INLINE void store_kv(float* p, vf x) { store(p, x); }
KVASIR_INLINE void store_kv(uint16_t* p, vf x) { store_bf16(p, x); }
KVASIR_INLINE void store_kv(int8_t* p, vf x) { store_i8(p, to_int(x)); }
KVASIR_INLINE void store_kv(E4m3* p, vf x) {
  store_i8(reinterpret_cast<int8_t*>(p), fp8_bits<3, -6>(x, 448.0f, 0x1p-6f, 0x1p9f));
}
KVASIR_INLINE void store_kv(E5m2* p, vf x) {
  store_i8(reinterpret_cast<int8_t*>(p), fp8_bits<2, -14>(x, 57344.0f, 0x1p-14f, 0x1p16f));
}

// The bf16 scale of a head and its inverse: max|x| / largest; NaN (inverse 0) when x is not finite.
KVASIR_INLINE uint16_t head_scale(const float* x, int head_dim, float largest, float* inverse) {
  vf most = zero(), poison = zero();
  for (int d = 0; d < head_dim; d += 16) {
    const vf v = load(x + d);
    most = vmax(most, from_bits(andi(bits(v), set1i(0x7fffffff))));
    poison = fma(v, zero(), poison);
  }
  const float bad = reduce_add(poison), scale = reduce_max(most) / largest;
  *inverse = 0.0f;
  if (bad != bad) return kNanScale;
  if (scale < kSmallestScale) return 0;
  uint16_t rounded;
  store_bf16_n(&rounded, set1(scale), 1);
  *inverse = 1.0f / __builtin_bit_cast(float, uint32_t(rounded) << 16);
  return rounded;
}

// A head as elements of the cache, and its scale where the type has them: scales[lane].
template <class T>
KVASIR_INLINE void encode_head(const float* x, int head_dim, T* out, uint16_t* scales, int64_t lane) {
  if constexpr (Element<T>::kScaled) {
    float inverse;
    scales[lane] = head_scale(x, head_dim, Element<T>::kLargest, &inverse);
    for (int d = 0; d < head_dim; d += 16) store_kv(out + d, mul(load(x + d), set1(inverse)));
  } else {
    for (int d = 0; d < head_dim; d += 16) store_kv(out + d, load(x + d));
  }
}

// First element of the subtile (K) and of the 16 rows (V) that hold storage index `index` of a sequence, and
// their scales. Both have 16 * head_dim elements: K [head_dim][16], V [16][head_dim]. Entries of latents lie
// as V does, and have no K.
template <class T>
struct SubTile {
  T* k;
  T* v;
  uint16_t *k_scale, *v_scale;  // [16]; only where the type has scales
};
template <class T>
KVASIR_INLINE SubTile<T> sub_tile(const KvLayer& kv, const StepRows& rows, int64_t seq, int64_t index,
                                  int head) {
  const int64_t block = rows.tables[seq * rows.max_blocks + index / kv.block_size];
  const int64_t within = index % kv.block_size / kSub * kSub;
  uint8_t* base = kv.base + block * kv.block_bytes;
  if (kv.latent) {
    uint16_t* scales = reinterpret_cast<uint16_t*>(base + kv.head_bytes) + within;
    return {nullptr, reinterpret_cast<T*>(base) + within * kv.head_dim, scales, scales};
  }
  T* k = reinterpret_cast<T*>(base + head * kv.head_bytes) + within * kv.head_dim;
  T* v = reinterpret_cast<T*>(base + kv.v_offset + head * kv.head_bytes) + within * kv.head_dim;
  if constexpr (!Element<T>::kScaled) return {k, v, nullptr, nullptr};
  uint16_t* scales = reinterpret_cast<uint16_t*>(base + 2 * kv.v_offset) + head * kv.block_size + within;
  return {k, v, scales, scales + int64_t(kv.n_kv_heads) * kv.block_size};
}

}  // namespace kvasir::KVASIR_ISA
