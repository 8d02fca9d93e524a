// Readers of the compact layouts.
#include "isa/avx512/vec.h"
//
#include "generic/level.inl"
#include "isa/avx512/codes.h"
//
#include "isa/avx512/unpack.inl"
//
#include "isa/avx512/words.inl"
//
#include "generic/grid_words.inl"
//
#include "generic/compact.inl"
