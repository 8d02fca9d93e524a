#include <nanobind/stl/string.h>

#include "bench/measure.h"
#include "bind/bind.h"

namespace nb = nanobind;

namespace kvasir {

void bind_measure(nb::module_& m) {
  m.def("measure", &measure, nb::arg("kind"), nb::arg("n_threads"), nb::arg("n_bytes"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("measure_missing", &measure_missing, nb::arg("kind"));
}

}  // namespace kvasir
