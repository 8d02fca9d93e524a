// The integer linears of a level, one per layout.
#include "generic/linear_int.inl"
#include "generic/linear_panel.inl"

namespace kvasir::KVASIR_ISA {

void linear_q4m(const LinearArgs& a) { run_linear<IntTile<FormatQ4m>>(a); }
void linear_q4z(const LinearArgs& a) { run_linear<IntTile<FormatQ4z>>(a); }
void linear_q8(const LinearArgs& a) { run_linear<IntTile<FormatQ8>>(a); }
void linear_q4k(const LinearArgs& a) { run_linear<IntTile<FormatQ4k>>(a); }
void linear_q5k(const LinearArgs& a) { run_linear<IntTile<FormatQ5k>>(a); }
void linear_q6k(const LinearArgs& a) { run_linear<IntTile<FormatQ6k>>(a); }
void linear_q5z(const LinearArgs& a) { run_linear<IntTile<FormatQ5z>>(a); }
void linear_q5m(const LinearArgs& a) { run_linear<IntTile<FormatQ5m>>(a); }
void linear_iq4(const LinearArgs& a) { run_linear<IntTile<FormatIq4>>(a); }
void linear_q8s(const LinearArgs& a) { run_linear<IntTile<FormatQ8x<false>>>(a); }
void linear_q8m(const LinearArgs& a) { run_linear<IntTile<FormatQ8x<true>>>(a); }

}  // namespace kvasir::KVASIR_ISA
