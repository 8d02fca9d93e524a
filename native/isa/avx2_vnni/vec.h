// The vectors of AVX2 in a namespace of their own.
#pragma once
#define KVASIR_ISA isa_avx2_vnni
#include "isa/avx2/vec.h"

namespace kvasir::KVASIR_ISA {

// Per lane sum += u[0] s[0] + .. + u[3] s[3] in int32, unsigned by signed bytes (vpdpbusd).
// isa/avx2_vnni_emulated/vec.h has it in plain C++.
KVASIR_INLINE __m256i dot_bytes(__m256i sum, __m256i u, __m256i s) {
  return _mm256_dpbusd_avx_epi32(sum, u, s);
}

}  // namespace kvasir::KVASIR_ISA
