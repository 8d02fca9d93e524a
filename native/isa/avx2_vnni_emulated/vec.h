// The vectors of AVX2 in a namespace of their own, and AVX-VNNI's instruction as a function.
#pragma once
#define KVASIR_ISA isa_avx2_vnni_emulated
#include "isa/avx2/vec.h"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE __m256i dot_bytes(__m256i sum, __m256i u, __m256i s) {
  alignas(32) int32_t sums[8];
  alignas(32) uint8_t left[32];
  alignas(32) int8_t right[32];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sum);
  _mm256_store_si256(reinterpret_cast<__m256i*>(left), u);
  _mm256_store_si256(reinterpret_cast<__m256i*>(right), s);
  for (int i = 0; i < 32; i++) sums[i / 4] += left[i] * right[i];
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(sums));
}

}  // namespace kvasir::KVASIR_ISA
