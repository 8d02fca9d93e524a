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
#include "layouts.h"
#include "states.h"

namespace kvasir {

constexpr int kAttnTile = 64;  // logical KV positions of one online-softmax tile
// Logical positions of one attention segment; segments are combined in order.
constexpr int kAttnSplit = 1024;

// Of values. i32: ids and places, which no kernel casts to.
KVASIR_ENUM(DType, f32, bf16, q8, i32);

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

constexpr int32_t kPrefetch = 4096;    // bytes ahead
constexpr int32_t kManyRows = 16;      // for which weights are unpacked once, to a panel
constexpr int32_t kNoPanel = 1 << 30;  // rows that no linear has

// How a linear goes through rows and weights; never a bit of what it computes. 0: as the layout does.
struct LinearShape {
  int32_t block = 0;               // rows of a block: 4 or 8
  int32_t tiles = 0;               // read side by side: 1 or 2
  int32_t ahead = kPrefetch;       // bytes of a tile that are asked for before they are read; 0: none
  int32_t panel_rows = kManyRows;  // rows from which weights are unpacked once, to a panel
};
// Kinds of kernels for one layout. usual: the best of the level where nothing was measured; narrow: of
// vectors of 256 bits, where the usual ones have more; held: a group's weights stay in registers while all
// rows pass.
KVASIR_ENUM(Form, usual, narrow, held);

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
  LinearShape shape{};
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
//  score = scale * dot, then softcap * tanh(score / softcap) when softcap > 0, or with slopes less the slope
//  of the head times |p - pos| (ALiBi); a key at logical position p is visible when p <= pos, or p < ends of
//  the token where there are any, and (window == 0 or |p - pos| < window; chunked: or p / window == pos /
//  window) and, in a tree, at or after the sequence's start, p is an ancestor. Products are of bf16 where
//  the cache is smaller than f32. Online softmax over tiles of kAttnTile absolute logical positions inside
//  segments of kAttnSplit; segments are computed apart and combined in ascending order. Tree rows gather
//  their tile by logical position, so that they compute exactly what a chain would. With sinks, exp(sink of
//  the head) joins the sum of the softmax, as a key without a value would. `partial` null: the item computes
//  all segments and the output. Otherwise `attention` computes `segment` alone and leaves it in
//  partial[segment], and `attention_combine`, once all segments [0, segment) have been computed, gives the
//  output that one item would have given, bit for bit.
//  With `tokens` the item has [t1 - t0] tokens instead, each the only one of its sequence, whose tables agree
//  in the first `shared` positions: these are brought into the cache once for all of them. `seq` is that of
//  the first one, out's rows are theirs in this order, and `partial` is null.
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
  const int32_t* tokens;
  int64_t shared;
  int32_t kv_head;
  const float* sinks;   // [n_heads] or null
  const float* slopes;  // [n_heads] or null; not with a softcap
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

// out[m, n] = act(max(0, x[m, n] - cut)) * up[m, n], where cut is the mean of row m of x plus so many of its
// standard deviations.
struct SparseGateArgs {
  const float *x, *up;
  float* out;
  int32_t N;
  int64_t ld;
  float deviations;
  Act act;
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
  void (*linear[kForms][kLayouts])(const LinearArgs&);  // null: no such form
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
  void (*sparse_gate)(const SparseGateArgs&);
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
