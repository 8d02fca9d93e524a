// The whole kernel API: one table of function pointers per ISA level, and the argument blocks they take.
//
// Rules that make one answer possible (ARCHITECTURE.md, "One answer"):
//  * A kernel computes the items [begin, end) it is given; how items are cut never changes a bit of the
//  result.
//  * Reductions run over 16 logical lanes, whatever the register width: lane i sums elements i, i + 16,
//    i + 32 and so on, and the lanes are combined by the fixed tree of vec.h (reduce_add). Masked lanes add
//    an exact zero.
//  * Explicit FMA where written, none elsewhere (-ffp-contract=off); exp, tanh and log are our own.
//  * No kernel allocates, locks or throws. Scratch comes from the caller.
// ISA files include only this header and what it includes, vec.h and <immintrin.h>: no STL, so that no shared
// inline function can be compiled twice with different flags.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "enums.h"
#include "kv.h"
#include "states.h"

namespace kvasir {

constexpr int kTileCols = 16;  // columns of one packed weight tile
constexpr int kGroup = 32;     // elements of one quantization group of the weights
constexpr int kAttnTile = 64;  // logical KV positions of one online-softmax tile
// Logical positions of one attention segment; segments are combined in order.
constexpr int kAttnSplit = 1024;

// Of values. i32: ids and places, which no kernel casts to.
KVASIR_ENUM(DType, f32, bf16, q8, i32);

// Packed weights are kept on disk under this number: raise it whenever the bytes of a layout below, or the
// order in which matrices are packed together, change. Files of another number are packed again.
constexpr int kLayoutVersion = 2;

// Weight layouts. Tile t holds columns (output features) 16t .. 16t+15; missing columns are zero.
// clang-format off
//  q4z: per group of 32 k: 256 B nibbles, 16 fp16 scales; value = scale * (nibble - 8)               [Q4_0]
//       nibbles: 4 chunks of 64 B; byte 4*c+b of chunk j is of column c: low k = 8j+b, high k = 8j+4+b
//  q4m: per group of 32 k: 256 B nibbles, 16 fp16 scales, 16 mins; value = scale * nibble + min      [Q4_1]
//  q8:  per group of 32 k: 512 B int8 + 128 (unsigned), 16 fp16 scales; value = scale * (byte - 128) [Q8_0]
//       8 chunks of 64 B; byte 4*c+b of chunk j belongs to column c, k = 4j+b
//  q4k: per 256 k: 16 fp16 d, 16 fp16 e; then 8 groups of 256 B nibbles, 16 bytes s, 16 bytes m
//       value = d * s * nibble + e * m (e is the negated file value)                                 [Q4_K]
//  q5k: as q4k, with 64 B of fifth bits after the nibbles: bit i of byte 4*c+b is of k = 4i+b        [Q5_K]
//  q6k: per 256 k: 16 fp16 d; then 8 groups of 256 B nibbles, 128 B of upper bits, 2 x 16 bytes s + 128
//       (for the 16 lower and upper k); bits 2i, 2i+1 of byte 4*c+b of chunk j: k = 16j+4i+b
//       value = d * s * (six bits - 32)                                                              [Q6_K]
//  q5z: as q4z, with 64 B of fifth bits after the nibbles; value = scale * (five bits - 16)          [Q5_0]
//  q5m: as q4m, with 64 B of fifth bits after the nibbles                                            [Q5_1]
//  iq4: as q4z; value = scale * IQ4_NL's code                                                        [IQ4_NL]
//  q8s: as q8, with 2 x 16 f32 scales (for the 16 lower and upper k): any format without mins
//  q8m: as q8s, then as many mins
//  bf16: per pair of k: 16 columns x 2 (k, k+1) bf16; K padded to even with zeros; summed odd k first
//  f32: per k: 16 columns f32
// Compact layouts, read a group at a time to 8 bits (generic/compact.inl); after a head of 16 fp16 d, 8
// groups of 32 k. Planes of n bits: bits n*i of byte 4*c+b of chunk j belong to k = 4*(8/n*j + i) + b.
//  q2k: also 16 fp16 e; two bits, 2 x 16 bytes s + 16 m; value = d * s * code + e * m                [Q2_K]
//  q3k: two bits, one bit, 2 x 16 bytes s + 32; value = d * s * (code - 4)                           [Q3_K]
//  iq4xs: nibbles, 16 bytes s + 32; value = d * s * IQ4_NL's code                                    [IQ4_XS]
//  mxfp4: no head; nibbles, 16 bytes e; value = 2^(e - 128) * kFp4Values[nibble]                     [MXFP4]
//  iq2xxs, iq2xs, iq2s, iq3xxs, iq3s: codes (grid_words.inl), 64 B of signs: bit 4*c+b of eight bytes j is
//       of k = 4j+b. Steps s are nibbles of 16 columns, behind the d of the head for two groups each where
//       the format has one a group, else behind the signs for its two runs.
//       value = d * (2s + 1) * (1/8, iq3xxs: 1/4, iq3s: 1) * grid's
//  iq1s: codes, 16 x 16 bits: four times 3 bits above them, 3 bits s, a sign of the eighth that is added
//  iq1m: codes, 16 x 4 x (3 bits, sign), 16 bytes with two s
//  tq2: two bits; value = d * (digit - 1)                                                            [TQ2_0]
//  tq1: 13 x 64 bytes for the block, five digits of base 3 a byte; value = d * (digit - 1)           [TQ1_0]
// clang-format on
KVASIR_ENUM(Layout, f32, bf16, q8, q4z, q4m, q4k, q5k, q6k, q5z, q5m, iq4, q8s, q8m, q2k, q3k, iq4xs, mxfp4,
            iq2xxs, iq2xs, iq2s, iq3xxs, iq3s, iq1s, iq1m, tq1, tq2);
struct LayoutSize {
  int elements, bytes;  // of a row's run, and of the 16 columns that hold it
};
constexpr LayoutSize kLayoutSizes[kLayouts] = {
    {1, 64},     {2, 64},     {32, 544},  {32, 288},   {32, 320},   {256, 2368}, {256, 2880},
    {256, 3360}, {32, 352},   {32, 384},  {32, 288},   {32, 640},   {32, 768},   {256, 1344},
    {256, 1824}, {256, 2208}, {32, 272},  {256, 1120}, {256, 1248}, {256, 1312}, {256, 1632},
    {256, 1760}, {256, 800},  {256, 928}, {256, 864},  {256, 1056}};
constexpr bool is_compact(Layout layout) { return layout >= Layout::q2k; }
constexpr int kMaxCompactBlock = 512;  // of the rows that meet a compact layout

// What the 4-bit codes of iq4 mean.
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// And twice those of e2m1.
constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Rows of activations. q8: int8 values, one scale per `block` elements of a row, and per group of 32 the sum
// of its int8 values and that of the first 16 of them (`sums`). block is a multiple of 32 that divides K.
struct Rows {
  DType dtype;
  int32_t block;  // q8 only
  void* data;     // [rows, ld] f32, bf16 (uint16_t) or int8
  int64_t ld;     // elements between rows
  float* scales;  // q8: [rows, K / block]
  int32_t* sums;  // q8: [rows, K / 32, 2]
};

// clamped_swiglu: of min(gate, 7) and up between -7 and 7, gate * sigmoid(1.702 gate) * (up + 1).
KVASIR_ENUM(Act, none, silu, gelu_tanh, gelu, clamped_swiglu, sigmoid);
KVASIR_ENUM(Epilogue, none, add, gated, act);
constexpr bool activates(Epilogue epilogue) {
  return epilogue == Epilogue::gated || epilogue == Epilogue::act;
}
// Of the output of tiles from `tile` on; two tiles of a gated linear give one tile's columns.
constexpr int64_t first_column(Epilogue epilogue, int64_t tile) {
  return (epilogue == Epilogue::gated ? tile / 2 : tile) * kTileCols;
}

// out[m, n] = epilogue(sum_k x[m, k] * W[n, k] + bias[n]) for m in [m0, m1), n-tiles [tile0, tile1).
//  add  : + residual[m, n].
//  gated: tiles come in pairs (gate, up): out column of pair p is act(gate) * up; tile0, tile1 are even.
//  act  : act of the sum.
struct LinearArgs {
  const uint8_t* w;
  Layout layout;
  int32_t K, N;  // N: real output columns of this weight (before pairing: gate + up together)
  int64_t tile0, tile1;
  const Rows* x;
  int64_t m0, m1;
  float* out;  // of row m0 and the first column of tile0
  int64_t ldo;
  Epilogue epilogue;
  Act act;
  const float* residual;     // as out
  const float* bias;         // [N] or null
  const int32_t* row_index;  // null, or input row of each output row (experts)
};

// y = norm(x) * weight, written as f32, bf16 or q8 rows. norm: x * (1 / sqrt(mean(x^2) + eps)); layer_norm:
// the same of d = x - mean(x), then + bias, in one FMA with the weight.
struct NormArgs {
  const float* x;
  int64_t ldx;
  const float* weight;  // [K] or null (norm); "1 + weight" is folded in when the weights are loaded
  const float* bias;    // [K] or null (layer_norm); norm has none
  int32_t K;
  float eps;
  Rows out;
  int64_t m0, m1;
};

// Columns [column, column + K) of rows [m0, m1), f32 -> f32, bf16 or q8; of q8 whole blocks.
struct CastArgs {
  const float* x;  // of row m0 and the first of the columns
  int64_t ldx;
  int32_t K;
  Rows out;
  int64_t m0, m1;
  int32_t column;
};

// RMS norm of q and k: none; of each head; of all heads of q, and of k, as one row; of each head after rope;
// of each head and, without a weight, of each head of v. Those after rope may have no weight.
KVASIR_ENUM(QkNorm, none, heads, width, turned, all);

// Splits qkv rows [q heads | k heads | v heads], norms and rotates q and k, writes q to `q` and k, v to the
// blocks. With QkNorm::all rows may end with k, which are then v, too. Without `kv`: q alone. Norms are
// [head_dim], of the width [heads * head_dim]. table, of k, and q_table:
// [positions, rotary_dim] = cos[rotary_dim/2] | sin[rotary_dim/2].
//  neox: pairs (i, i + rotary_dim/2); interleaved: pairs (2i, 2i+1). Elements past rotary_dim pass through.
struct RopeWriteArgs {
  const float* qkv;
  int64_t ldqkv;
  float* q;
  int64_t ldq;
  int32_t n_heads, n_kv_heads, head_dim, rotary_dim;
  bool neox;
  const float* table;
  const float* q_table;
  QkNorm norm;
  const float* q_norm;
  const float* k_norm;
  float eps;
  const KvLayer* kv;
  const StepRows* rows;
  int64_t m0, m1;  // tokens
};

// Of latent | key rows: norms the latent (RMS), rotates the key as rope_write does, writes both as the entry
// of the token; rotates the heads of `q`, of rotary_dim elements each, to `out`.
struct LatentWriteArgs {
  const float* x;
  int64_t ldx;
  const float* q;
  float* out;
  int64_t ldq;  // of both
  int32_t n_heads, rotary_dim;
  bool neox;
  const float* table;
  const float* norm;  // [latent]
  float eps;
  const KvLayer* kv;
  const StepRows* rows;
  int64_t m0, m1;  // tokens
};

// Positions [low, high) of a tile of one sequence and KV head that will be wanted soon; none where high is 0.
struct ComingKv {
  int64_t seq, low, high;
  int32_t kv_head;
};

// One item: query tokens [t0, t1) of one sequence against one KV head (all its query heads).
//  score = scale * dot, then softcap * tanh(score / softcap) when softcap > 0; a key at logical position p is
//  visible when p <= pos, or p < ends of the token where there are any, and (window == 0 or |p - pos| <
//  window; chunked: or p / window == pos / window) and, in a tree, at or after the sequence's start, p is an
//  ancestor. Products are of bf16 where the cache is smaller than f32. Online softmax over tiles of kAttnTile
//  absolute logical positions inside segments of kAttnSplit; segments are computed apart and combined in
//  ascending order. Tree rows gather their tile by logical position, so that they compute exactly what a
//  chain would. With sinks, exp(sink of the head) joins the sum of the softmax, as a key without a value
//  would. `partial` null: the item computes all segments and the output. Otherwise `attention` computes
//  `segment` alone and leaves it in partial[segment], and `attention_combine`, once all segments [0, segment)
//  have been computed, gives the output that one item would have given, bit for bit.
struct AttentionArgs {
  const float* q;
  int64_t ldq;
  const float* turned;  // with latents: heads of what they do not hold, behind those of q; else null
  int64_t ldt;
  float* out;  // of token t0 and the first of the KV head's query heads
  int64_t ldo;
  int32_t n_heads;
  float scale, softcap;
  int32_t window;
  bool chunked;
  const int32_t* ends;  // [T] positions that are visible end here, or null: behind the token itself
  const KvLayer* kv;
  const StepRows* rows;
  int64_t seq, t0, t1;
  int32_t kv_head;
  const float* sinks;  // [n_heads] or null
  int64_t segment;
  float* partial;   // [segments][attention_partial(...)] floats, 64-byte aligned, or null
  float* scratch;   // attention_scratch(...) floats, 64-byte aligned, private to the thread
  ComingKv coming;  // fetched during the last tile
};
constexpr int kAttnState = 32;  // floats of a query vector's maxima and sums
constexpr int64_t attention_partial(int64_t tokens, int64_t group, int64_t head_dim) {
  return tokens * group * (head_dim + kAttnState);
}
constexpr int64_t attention_scratch(int64_t tokens, int64_t group, int64_t head_dim) {
  // accumulators of two segments, the rounded query, max and sum per query vector, the scores of at most 16
  // of them, one gathered or packed K and V tile, the scales of a tile, and the keys of one of latents
  return tokens * group * (3 * head_dim + kAttnState) + 16 * kAttnTile + 3 * kAttnTile * head_dim +
         2 * kAttnTile + 64;
}

// Row ids of packed weights back to f32: out[i] = W[ids[i], :] * scale.
struct EmbedArgs {
  const uint8_t* w;
  Layout layout;
  int32_t K;
  const int32_t* ids;
  float scale;
  float* out;
  int64_t ldo;
  int64_t m0, m1;
};

// Elementwise over [m0, m1) rows of N columns.
struct AddArgs {
  const float* a;
  const float* b;
  float* out;
  int32_t N;
  int64_t ld;
  int64_t m0, m1;
};  // out = a + b
struct ScaleArgs {
  const float* x;
  float* out;
  int32_t N;
  int64_t ld;
  float scale, softcap;
  int64_t m0, m1;
};  // softcap(x * scale)

// out[m, n] = x[m, n] * sigmoid(gate[m])
struct GateRowsArgs {
  const float* x;
  const float* gate;
  float* out;
  int32_t N;
  int64_t ld;
  int64_t m0, m1;
};

// out[m, n] = x[m, n] * y[m, n]
struct MulArgs {
  const float* x;
  const float* y;
  int64_t ldy;  // 0: one row for all
  float* out;
  int32_t N;
  int64_t ld;
  int64_t m0, m1;
};

// Top-k routing in fp32. The score of an expert is its part of the softmax over all, or the sigmoid of its
// logit; late_sigmoid: its logit, and its weight the sigmoid of that. Experts are chosen by score + bias,
// larger first, ties to the lowest id; with groups (equal runs of experts) only those of the top_groups best
// groups are, a group being as good as its best expert or as the sum of its best two. The weight of a chosen
// expert is its score without bias: divided, when normalize, by the sum of the chosen in the order of their
// rank plus 1e-20, then times scale. pair p = token * k + rank.
KVASIR_ENUM(Score, softmax, sigmoid, late_sigmoid);
KVASIR_ENUM(GroupScore, best, best_two);
constexpr int kMaxExperts = 1024;
struct RouteArgs {
  const float* logits;
  int64_t ld;
  const float* bias;  // [n_experts] or null
  int32_t n_experts, k;
  Score score;
  int32_t n_groups, top_groups;
  GroupScore group_score;
  bool normalize;
  float scale;
  int32_t* ids;
  float* weights;  // [T, k]
  int64_t m0, m1;
};
// out[row[t * k + r]] = weights[t, r] * x[t] for each rank r.
struct SpreadArgs {
  const float* x;
  const int32_t* row;
  const float* weights;
  int32_t k, N;
  float* out;
  int64_t ld;
  int64_t m0, m1;
};
// out[t] = sum over rank r ascending of weights[t, r] * y[row[t * k + r]] (fma chain from 0; row null: the
// pair itself; weights null: ones).
struct CombineArgs {
  const float* y;
  int64_t ldy;
  const int32_t* row;
  const float* weights;
  int32_t k, N;
  float* out;
  int64_t ldo;
  int64_t m0, m1;
};

struct Kernels {
  const char* level;
  void (*linear[kLayouts])(const LinearArgs&);
  void (*norm)(const NormArgs&);
  void (*layer_norm)(const NormArgs&);
  void (*cast)(const CastArgs&);
  void (*rope_write)(const RopeWriteArgs&);
  void (*latent_write)(const LatentWriteArgs&);
  void (*attention)(const AttentionArgs&);
  void (*attention_combine)(const AttentionArgs&);
  void (*embed)(const EmbedArgs&);
  void (*add)(const AddArgs&);
  void (*scale)(const ScaleArgs&);
  void (*gate_rows)(const GateRowsArgs&);
  void (*short_conv)(const ShortConvArgs&);
  void (*linear_scan)(const LinearScanArgs&);
  void (*mul)(const MulArgs&);
  void (*route)(const RouteArgs&);
  void (*spread)(const SpreadArgs&);
  void (*combine)(const CombineArgs&);
};

// Each level overrides what it does better; unset entries keep the lower level's kernel.
void fill_scalar(Kernels& k);
void fill_avx2(Kernels& k);
void fill_avx2_vnni(Kernels& k);
void fill_avx2_vnni_emulated(Kernels& k);
void fill_avx512(Kernels& k);
void fill_avx512_vnni(Kernels& k);
void fill_avx512_bf16(Kernels& k);
void fill_amx(Kernels& k);
void fill_amx_emulated(Kernels& k);

}  // namespace kvasir
