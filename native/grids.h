// The codebooks of the IQ formats: which words of small numbers they may hold (kvasir/formats/grids.py).
#pragma once
#include <stdint.h>

namespace kvasir {

// N words of eight elements with three values.
template <int N>
struct Grid8 {
  uint32_t words[2 * N];  // four int8 each, element 0 lowest
  uint16_t codes[N];      // two bits an element: which value
  int8_t values[16];      // by two bits; by two bits times 4 as well
};

// N words of four elements with eight values.
template <int N>
struct Grid4 {
  uint32_t words[N];
  uint16_t codes[N];  // four bits each of elements 0, 2, 1, 3
  int8_t values[16];  // by three bits
};

extern const Grid8<256> kGrid2xxs;
extern const Grid8<512> kGrid2xs;
extern const Grid8<1024> kGrid2s;
extern const Grid8<2048> kGrid1;  // in eighths
extern const Grid4<256> kGrid3xxs;
extern const Grid4<512> kGrid3s;

}  // namespace kvasir
