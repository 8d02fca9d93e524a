#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "cpu/select.h"

namespace kvasir {

void bind_levels(nanobind::module_& m) {
  m.def("levels", &levels, "ISA levels that this machine can run, lowest first.");
}

}  // namespace kvasir
