#include "isa/amx_emulated/vec.h"
//
#include "isa/amx_emulated/tiles.h"
//
#include "isa/amx/linear.inl"
