#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "cpu/select.h"

namespace kvasir {

void bind_levels(nanobind::module_& m) {
  using namespace nanobind::literals;
  m.def("levels", &levels, "emulated"_a = false, "ISA levels that this machine can run, lowest first.");
  m.def(
      "all_levels",
      [] {
        std::vector<std::tuple<std::string, bool, bool>> found;
        for (const Level& level : all_levels())
          if (!level.is_emulated) found.emplace_back(level.name, level.runs(), level.is_proven);
        return found;
      },
      "(name, runs here, tested on a CPU that has it) of every ISA level, lowest first.");
}

}  // namespace kvasir
