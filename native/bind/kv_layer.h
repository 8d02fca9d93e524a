// One layer of KV memory as Python describes it, checked.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

#include "program/spec.h"

namespace kvasir {

// Bytes that a layer has of each block: K, V and scales; entries of latents and scales; or a state.
inline int64_t layer_bytes(const KvLayer& kv) {
  if (kv.is_state()) return kv.head_bytes;
  const int64_t scale = kKvTypeSizes[int(kv.dtype)].scale;
  return (kv.latent ? 1 : 2) * kv.n_kv_heads * (kv.head_bytes + kv.block_size * scale);
}

// Throws std::invalid_argument for sizes that the kernels do not take.
inline KvLayer kv_layer(uint8_t* memory, const KvPlace& p) {
  if (p.block_size < 1 || p.block_size % 16) throw std::invalid_argument("block_size is a multiple of 16");
  if (p.n_kv_heads == 0 && p.head_dim == 0)
    return {memory + p.offset, p.block_bytes, 0, p.layer_bytes, p.block_size, 0, 0, KvType::f32, 0};
  if (p.latent ? p.n_kv_heads != 1 || !is_latent_dim(p.head_dim, p.latent) : !is_head_dim(p.head_dim))
    throw std::invalid_argument("heads of " + std::to_string(p.head_dim) +
                                " numbers: the kernels take multiples of 16 up to " +
                                std::to_string(p.latent ? kMaxLatentDim : kMaxHeadDim));
  if (p.n_kv_heads < 1) throw std::invalid_argument("a layer has KV heads");
  if (p.dtype < 0 || p.dtype >= kKvTypes) throw std::invalid_argument("no such type of cache entries");
  const int64_t head = int64_t(p.block_size) * p.head_dim * kKvTypeSizes[p.dtype].element;
  return {memory + p.offset, p.block_bytes,   p.n_kv_heads * head, head, p.block_size, p.n_kv_heads,
          p.head_dim,        KvType(p.dtype), int32_t(p.latent)};
}

}  // namespace kvasir
