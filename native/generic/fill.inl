// The table entries that every level has. Include after vec.h.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

KVASIR_INLINE void fill_integer_linears(Kernels& k) {
  k.linear_q8 = linear_q8;
  k.linear_q4z = linear_q4z;
  k.linear_q4m = linear_q4m;
  k.linear_q4k = linear_q4k;
  k.linear_q5k = linear_q5k;
  k.linear_q6k = linear_q6k;
  k.linear_q5z = linear_q5z;
  k.linear_q5m = linear_q5m;
  k.linear_iq4 = linear_iq4;
  k.linear_q8s = linear_q8s;
  k.linear_q8m = linear_q8m;
}

KVASIR_INLINE void fill_generic(Kernels& k) {
  fill_integer_linears(k);
  k.linear_f32 = linear_f32;
  k.linear_bf16 = linear_bf16;
  k.norm = norm;
  k.cast = cast;
  k.rope_write = rope_write;
  k.attention = attention;
  k.attention_combine = attention_combine;
  k.embed = embed;
  k.gated = gated;
  k.add = add_rows;
  k.scale = scale_rows;
  k.route = route;
  k.combine = combine;
}

}  // namespace kvasir::KVASIR_ISA
