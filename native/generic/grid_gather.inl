// Words of codebooks, for levels without a better way than gathering.
#pragma once
#include "generic/grid_words.inl"

namespace kvasir::KVASIR_ISA {

// Word `index` of 16 columns: eight k.
template <int N>
KVASIR_INLINE void word8(const Grid8<N>& grid, vi index, vi* out) {
  for (int i = 0; i < 2; i++) out[i] = add8(gather(grid.words + i, shl<1>(index)), each(kQ8Zero));
}

template <int N>
KVASIR_INLINE void words4(const Grid4<N>& grid, const uint8_t* codes, const uint8_t* high, Unpacked& u) {
  for (int word = 0; word < 8; word++)
    put(u, word, add8(gather(grid.words, code_of<N>(codes, high, 16, word)), each(kQ8Zero)));
}

}  // namespace kvasir::KVASIR_ISA
