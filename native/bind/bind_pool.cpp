#include "bind/bind.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace kvasir {

void bind_pool(nb::module_& m) {
  nb::class_<Pool>(m, "Pool", "Threads that run one function together.")
      .def(nb::init<int, bool>(), nb::arg("n_threads"), nb::arg("pin") = false)
      .def_prop_ro("size", &Pool::size);
}

}  // namespace kvasir
