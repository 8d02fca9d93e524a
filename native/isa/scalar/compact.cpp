// Readers of the compact layouts.
#include "isa/scalar/vec.h"
//
#include "generic/level.inl"
#include "isa/scalar/codes.h"
//
#include "isa/scalar/unpack.inl"
//
#include "isa/scalar/words.inl"
//
#include "generic/grid_gather.inl"
//
#include "generic/compact.inl"
