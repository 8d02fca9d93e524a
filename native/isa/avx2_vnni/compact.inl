// Readers of the compact layouts. Include after vec.h.
#include "generic/level.inl"
#include "isa/avx2_vnni/codes.h"
//
#include "isa/avx2/unpack.inl"
//
#include "isa/avx2/words.inl"
//
#include "generic/grid_gather.inl"
//
#include "generic/compact.inl"
