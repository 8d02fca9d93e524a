#include "isa/amx/vec.h"
//
#include "isa/amx/tiles.h"
//
#include "isa/amx/linear.inl"
