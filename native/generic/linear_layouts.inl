// The integer linears of a level, one per layout.
#include "generic/linear_int.inl"
#include "generic/linear_panel.inl"
//
#include "generic/linear_compact.inl"
#include "generic/linear_grouped.inl"

namespace kvasir::KVASIR_ISA {

template <class F>
void linear_int(const LinearArgs& a) {
  run_linear<IntTile<F>>(a);
}

// From q8 on.
constexpr void (*kLinears[])(const LinearArgs&) = {
    linear_int<FormatQ8>,  linear_int<FormatQ4z>,        linear_int<FormatQ4m>,      linear_int<FormatQ4k>,
    linear_int<FormatQ5k>, linear_int<FormatQ6k>,        linear_int<FormatQ5z>,      linear_int<FormatQ5m>,
    linear_int<FormatIq4>, linear_int<FormatQ8x<false>>, linear_int<FormatQ8x<true>>};

void linear_integer(const LinearArgs& a) {
  if (const auto linear = grouped_linear(a)) return linear(a);
  (is_compact(a.layout) ? compact_linear(a.layout) : kLinears[int(a.layout) - int(Layout::q8)])(a);
}

void fill_integer_linears(Kernels& k) {
  for (int layout = int(Layout::q8); layout < int(Layout::f8c); layout++)
    k.linear[int(Form::usual)][layout] = linear_integer;
}

}  // namespace kvasir::KVASIR_ISA
