// Readers of the compact layouts.
#include "isa/avx2/vec.h"
//
#include "generic/level.inl"
#include "isa/avx2/codes.h"
//
#include "isa/avx2/unpack.inl"
//
#include "isa/avx2/words.inl"
//
#include "generic/grid_gather.inl"
//
#include "generic/compact.inl"
