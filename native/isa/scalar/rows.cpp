#include "isa/scalar/vec.h"
//
#include "generic/elementwise.inl"
#include "generic/embed.inl"
#include "generic/latent.inl"
#include "generic/rope.inl"
#include "generic/route.inl"
#include "generic/rows.inl"
#include "generic/short_conv.inl"
