// The table entries that every level has. Include after vec.h.
#pragma once
#include "generic/level.inl"

namespace kvasir::KVASIR_ISA {

static void fill_generic(Kernels& k) {
  k.linear_f32 = linear_f32;
  k.linear_bf16 = linear_bf16;
  k.linear_q8 = linear_q8;
  k.linear_q4z = linear_q4z;
  k.linear_q4m = linear_q4m;
  k.norm = norm;
  k.cast = cast;
  k.rope_write = rope_write;
  k.attention = attention;
  k.embed = embed;
  k.gated = gated;
  k.add = add_rows;
  k.scale = scale_rows;
  k.route = route;
  k.combine = combine;
}

}  // namespace kvasir::KVASIR_ISA
