#pragma once
#include <nanobind/nanobind.h>

namespace kvasir {
class Fills;
void bind_levels(nanobind::module_& m);
void bind_pool(nanobind::module_& m);
void bind_tables(nanobind::module_& m);
void bind_sampler(nanobind::module_& m);
void bind_fills(nanobind::module_& m);
void bind_experts(nanobind::module_& m);  // before bind_kernels, whose class has one of these as its base
void bind_kernels(nanobind::module_& m);
void bind_measure(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_checksum(nanobind::module_& m);
void bind_lookup(nanobind::module_& m);
// Of an object of that class, or None.
Fills& fills_of(nanobind::handle bound);
}  // namespace kvasir
