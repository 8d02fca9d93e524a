// Integer linears of the compact layouts: a panel is unpacked to 8-bit integers, for any number of rows, and
// meets them as one of Q8 (a scale per group) or Q8x (two) would.
#pragma once
#include "generic/compact_level.inl"
#include "generic/linear_panel.inl"

namespace kvasir::KVASIR_ISA {

struct CompactTiles {
  GroupReader group;
  const uint8_t* w;
  int64_t stride;

  template <int NT>
  inline __attribute__((always_inline)) void read(int64_t g, Unpacked* u, Scales* s) const {
    for (int t = 0; t < NT; t++) group(w + t * stride, g, u[t], s[t]);
  }
};

template <class F>
void linear_compact(const LinearArgs& a) {
  const int64_t bytes = layout_bytes(a.layout, a.K);
  const GroupReader group = group_reader(a.layout);
  int64_t tile = a.tile0;
  for (; tile + 2 <= a.tile1; tile += 2)
    run_panels<F, 2>(a, tile, CompactTiles{group, a.w + tile * bytes, bytes});
  if (tile < a.tile1) run_panels<F, 1>(a, tile, CompactTiles{group, a.w + tile * bytes, bytes});
}

KVASIR_INLINE auto compact_linear(Layout layout) -> void (*)(const LinearArgs&) {
  if (layout == Layout::q2k) return linear_compact<FormatQ8x<true>>;
  return has_two_runs(layout) ? linear_compact<FormatQ8x<false>> : linear_compact<FormatQ8>;
}

}  // namespace kvasir::KVASIR_ISA
