// The kernels of one level, declared in its namespace. Include after the level's vec.h, which names
// KVASIR_ISA.
#pragma once
#include "kernels.h"

namespace kvasir::KVASIR_ISA {

void linear_f32(const LinearArgs& a);
void linear_bf16(const LinearArgs& a);
void linear_q8(const LinearArgs& a);
void linear_q4z(const LinearArgs& a);
void linear_q4m(const LinearArgs& a);
void linear_q4k(const LinearArgs& a);
void linear_q5k(const LinearArgs& a);
void linear_q6k(const LinearArgs& a);
void linear_q5z(const LinearArgs& a);
void linear_q5m(const LinearArgs& a);
void linear_iq4(const LinearArgs& a);
void linear_q8s(const LinearArgs& a);
void linear_q8m(const LinearArgs& a);
void norm(const NormArgs& a);
void cast(const CastArgs& a);
void rope_write(const RopeWriteArgs& a);
void attention(const AttentionArgs& a);
void attention_combine(const AttentionArgs& a);
void embed(const EmbedArgs& a);
void gated(const GatedArgs& a);
void add_rows(const AddArgs& a);
void scale_rows(const ScaleArgs& a);
void route(const RouteArgs& a);
void combine(const CombineArgs& a);

}  // namespace kvasir::KVASIR_ISA
