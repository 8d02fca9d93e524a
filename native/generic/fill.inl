// The table entries that every level has. Include after vec.h.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE void fill_generic(Kernels& k) {
#ifndef KVASIR_AS_BASE  // a level above has them (CMakeLists.txt)
  fill_integer_linears(k);
#endif
#ifndef KVASIR_BELOW_BF16  // likewise
  fill_scaled_linears(k);
  k.attention = attention;
  k.attention_combine = attention_combine;
#endif
  k.linear[int(Form::usual)][int(Layout::f32)] = linear_f32;
  k.linear[int(Form::usual)][int(Layout::f16)] = linear_f16;
  k.linear[int(Form::usual)][int(Layout::bf16)] = linear_bf16;
  k.norm = norm;
  k.layer_norm = layer_norm;
  k.cast = cast;
  k.rope_write = rope_write;
  k.latent_write = latent_write;
  k.embed = embed;
  k.add = add_rows;
  k.scale = scale_rows;
  k.gate_rows = gate_rows;
  k.sparse_gate = sparse_gate;
  k.short_conv = short_conv;
  k.linear_scan = linear_scan;
  k.mul = mul_rows;
  k.route = route;
  k.spread = spread;
  k.combine = combine;
}

}  // namespace kvasir::KVASIR_ISA
