// The vectors of AVX2 in a namespace of their own.
#pragma once
#define KVASIR_ISA isa_avx2_vnni
#include "isa/avx2/vec.h"
