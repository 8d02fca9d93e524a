// The KV memory of a layer, and the rows of a step that are written to it and read from it.
#pragma once
#include <stdint.h>

#include "enums.h"

namespace kvasir {

// Sizes of a head that the kernels take.
constexpr int kMaxHeadDim = 512;
constexpr bool is_head_dim(int64_t size) { return size > 0 && size <= kMaxHeadDim && size % 16 == 0; }
// And of an entry of latent attention, of which a first part is the latent.
constexpr int kMaxLatentDim = 1024;
constexpr bool is_latent_dim(int64_t size, int64_t latent) {
  return latent < size && size <= kMaxLatentDim && size % 16 == 0 && latent % 16 == 0;
}
// Query heads of one item of latent attention, at most: the entries that it has brought into the cache serve
// all of them.
constexpr int kLatentHeads = 16;

// Types of cache entries (kvasir/exec/reference/kvtypes.py says how they are rounded). Types with scales have
// a bf16 one per (token, head), K and V each: value = code * scale; a head that is not finite has the scale
// NaN.
KVASIR_ENUM(KvType, f32, bf16, int8, fp8_e4m3, fp8_e5m2);
struct KvTypeSize {
  int element, scale;  // bytes; no scale: 0
};
constexpr KvTypeSize kKvTypeSizes[kKvTypes] = {{4, 0}, {2, 0}, {1, 2}, {1, 2}, {1, 0}};

// KV memory of one layer. A block holds `block_size` tokens (multiple of 16) of all KV heads:
//  K of head h: [block_size/16][head_dim][16 tokens], V of head h: [block_size][head_dim]; after V of all
//  heads, for types with scales, K's scales [heads][block_size], then V's.
// With latents a block has entries alone, [block_size][head_dim], then scales: an entry is a key, its first
// `latent` numbers a value, of all query heads. n_kv_heads says into how many parts items cut these heads.
// Of a layer with a state a block holds that alone, in f32, and there are no KV heads.
struct KvLayer {
  uint8_t* base;        // block 0 of this layer
  int64_t block_bytes;  // distance between blocks
  int64_t v_offset;     // bytes from K to V inside a block
  int64_t head_bytes;   // bytes of one head's K (= one head's V) inside a block, or of a state
  int32_t block_size, n_kv_heads, head_dim;
  KvType dtype;
  int32_t latent;  // 0: keys and values
  bool is_state() const { return n_kv_heads == 0; }
};
constexpr int32_t value_dim(const KvLayer& kv) { return kv.latent ? kv.latent : kv.head_dim; }

// The rows of one step. Token i belongs to sequence seq[i]; its KV storage index is store[i], its logical
// position pos[i] (equal but for tree rows).
struct StepRows {
  int64_t n_tokens, n_seqs;
  const int32_t* seq;        // [T]
  const int32_t* pos;        // [T]
  const int32_t* store;      // [T]
  const int32_t* parent;     // [T] index of the parent token in this step for tree rows, else -1
  const int32_t* seq_begin;  // [S + 1] token range of each sequence
  const int32_t* seq_start;  // [S] storage index of the sequence's first token of this step
  const uint8_t* seq_tree;   // [S] 1 where the row is a tree
  const int32_t* tables;     // [S, max_blocks]
  int64_t max_blocks;
};

}  // namespace kvasir
