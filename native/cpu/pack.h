// Brings weight rows from their file format to a packed layout (layouts.h), losslessly for the quantized
// ones.
#pragma once
#include <cstdint>

#include "kernels.h"
#include "pool/pool.h"

namespace kvasir {

enum class Format : int32_t {
  f32 = 0,
  f16 = 1,
  bf16 = 2,
  q8_0 = 3,
  q4_0 = 4,
  q4_1 = 5,
  q5_0 = 6,
  q5_1 = 7,
  q4_k = 8,
  q5_k = 9,
  q6_k = 10,
  iq4_nl = 11,
  q2_k = 12,
  q3_k = 13,
  iq4_xs = 14,
  mxfp4 = 15,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq2_s = 18,
  iq3_xxs = 19,
  iq3_s = 20,
  iq1_s = 21,
  iq1_m = 22,
  tq1_0 = 23,
  tq2_0 = 24,
  // of modules of checkpoints (formats/modules.py), blocks of rows as weights/quantization makes them
  qg2_32,
  qg2_64,
  qg2_128,
  qg3_32,
  qg3_64,
  qg3_128,
  qg4_32,
  qg4_64,
  qg4_128,
  qg8_32,
  qg8_64,
  qg8_128,
  q4c,
  q8c,
  nvfp4m,
  nvfp4d,
  f8c,
  f8_32,
  f8_128,
  nf4,
  fp4
};
constexpr const char* kFormatNames[] = {
    "F32",     "F16",    "BF16",   "Q8_0",    "Q4_0",   "Q4_1",   "Q5_0",    "Q5_1",    "Q4_K",   "Q5_K",
    "Q6_K",    "IQ4_NL", "Q2_K",   "Q3_K",    "IQ4_XS", "MXFP4",  "IQ2_XXS", "IQ2_XS",  "IQ2_S",  "IQ3_XXS",
    "IQ3_S",   "IQ1_S",  "IQ1_M",  "TQ1_0",   "TQ2_0",  "QG2_32", "QG2_64",  "QG2_128", "QG3_32", "QG3_64",
    "QG3_128", "QG4_32", "QG4_64", "QG4_128", "QG8_32", "QG8_64", "QG8_128", "Q4C",     "Q8C",    "NVFP4M",
    "NVFP4D",  "F8C",    "F8_32",  "F8_128",  "NF4",    "FP4"};

int64_t row_bytes(Format format, int64_t K);
int64_t tile_bytes(Layout layout, int64_t K);

// Can rows of `format` be brought to `layout` here? Quantized layouts and f16 take their own format
// alone; the other floats take F32 to Q4_1.
bool packs(Format format, Layout layout);

struct PackArgs {
  Layout layout;
  Format format;
  const uint8_t* rows;  // N rows of row_bytes(format, K)
  int64_t N, K;
  uint8_t* out;                   // zero-filled by the caller
  int64_t tile_first, tile_step;  // column tile t goes to tile_first + t * tile_step (gate and up interleave)
};
void pack(Pool& pool, const PackArgs& args);

}  // namespace kvasir
