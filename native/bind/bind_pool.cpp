#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind/bind.h"
#include "pool/memory.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace kvasir {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnlyBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<Pool>(m, "Pool", "Threads that run one function together.")
      .def(nb::init<int, std::vector<std::vector<int>>>(), nb::arg("n_threads"),
           nb::arg("cpus") = std::vector<std::vector<int>>())
      .def_prop_ro("size", &Pool::size);
  m.def(
      "interleave_new_pages", [](const std::vector<int>& nodes) { interleave_new_pages(nodes); },
      nb::arg("nodes"));
  m.def(
      "interleave_pages",
      [](Bytes memory, const std::vector<int>& nodes) {
        interleave_pages(memory.data(), memory.size(), nodes);
      },
      nb::arg("memory"), nb::arg("nodes"));
  m.def(
      "advise_huge_pages",
      [](ReadOnlyBytes memory, bool wanted) {
        return advise_huge_pages(memory.data(), memory.size(), wanted);
      },
      nb::arg("memory"), nb::arg("wanted"));
  m.def(
      "populate_pages",
      [](Bytes memory) {
        nb::gil_scoped_release release;
        return populate_pages(memory.data(), memory.size());
      },
      nb::arg("memory"));
}

}  // namespace kvasir
