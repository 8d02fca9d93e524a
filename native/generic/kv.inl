// Where a token's K and V lie in the pages, and elements of either KV type. Include after vec.h.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

constexpr int kSub = 16;  // positions of one K subtile: the lanes of a score vector
constexpr int kMaxHeadDim = 256;

KVASIR_INLINE vf load_kv(const float* p) { return load(p); }
KVASIR_INLINE vf load_kv(const uint16_t* p) { return load_bf16(p); }
KVASIR_INLINE float kv_float(float x) { return x; }
KVASIR_INLINE float kv_float(uint16_t h) { return __builtin_bit_cast(float, uint32_t(h) << 16); }

// First element of the subtile (K) and of the 16 rows (V) that hold storage index `index` of a sequence. Both
// have 16 * head_dim elements: K [head_dim][16], V [16][head_dim].
template <class T>
struct SubTile {
  T* k;
  T* v;
};
template <class T>
KVASIR_INLINE SubTile<T> sub_tile(const KvLayer& kv, const StepRows& rows, int64_t seq, int64_t index,
                                  int head) {
  const int64_t page = rows.tables[seq * rows.max_blocks + index / kv.block_size];
  const int64_t within = index % kv.block_size / kSub * kSub * kv.head_dim;
  uint8_t* k = kv.base + page * kv.page_bytes + head * kv.head_bytes;
  return {reinterpret_cast<T*>(k) + within, reinterpret_cast<T*>(k + kv.v_offset) + within};
}

}  // namespace kvasir::KVASIR_ISA
