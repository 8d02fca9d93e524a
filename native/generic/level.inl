// The kernels of one level, declared in its namespace. Include after the level's vec.h, which names
// KVASIR_ISA.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

void linear_f32(const LinearArgs& a);
void linear_f16(const LinearArgs& a);
void linear_bf16(const LinearArgs& a);
void fill_integer_linears(Kernels& k);
void linear_integer(const LinearArgs& a);  // whichever a.layout asks for
void fill_scaled_linears(Kernels& k);
void norm(const NormArgs& a);
void layer_norm(const NormArgs& a);
void cast(const CastArgs& a);
void rope_write(const RopeWriteArgs& a);
void latent_write(const LatentWriteArgs& a);
void attention(const AttentionArgs& a);
void attention_combine(const AttentionArgs& a);
void embed(const EmbedArgs& a);
void embed_compact(const uint8_t* tile, Layout layout, int c, int64_t K, float scale, float* out);
void add_rows(const AddArgs& a);
void scale_rows(const ScaleArgs& a);
void gate_rows(const GateRowsArgs& a);
void sparse_gate(const SparseGateArgs& a);
void short_conv(const ShortConvArgs& a);
void linear_scan(const LinearScanArgs& a);
void mul_rows(const MulArgs& a);
void route(const RouteArgs& a);
void spread(const SpreadArgs& a);
void combine(const CombineArgs& a);

}  // namespace kvasir::KVASIR_ISA
