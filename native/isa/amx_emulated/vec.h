// The vectors of AVX-512 in a namespace of their own.
#pragma once
#define KVASIR_ISA isa_amx_emulated
#include "isa/avx512/vec.h"
