// What reads the compact layouts of a level: declared for its linears, defined in compact.inl. Include after
// unpack.inl.
#pragma once
#include "generic/linear_formats.inl"

namespace kvasir::KVASIR_ISA {

// Group g of a tile to bytes and scales.
using GroupReader = void (*)(const uint8_t* tile, int64_t g, Unpacked& u, Scales& s);
GroupReader group_reader(Layout layout);

// Whether the two halves of a group have scales of their own.
constexpr bool has_two_runs(Layout layout) {
  return layout == Layout::q2k || layout == Layout::q3k || layout == Layout::iq2xs ||
         layout == Layout::iq2s || layout == Layout::iq1m || layout == Layout::nvfp4 ||
         layout == Layout::nvfp4d;
}

}  // namespace kvasir::KVASIR_ISA
