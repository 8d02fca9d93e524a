#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind/bind.h"
#include "cpu/select.h"
#include "cpu/variants.h"

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
  m.def(
      "variants",
      [] {
        std::vector<std::tuple<std::string, std::string>> found;
        for (const Variant& v : variants()) {
          std::string about;
          for (int64_t x : {int64_t(v.form), int64_t(v.first), int64_t(v.last), int64_t(v.shape.block),
                            int64_t(v.shape.tiles), int64_t(v.shape.ahead), int64_t(v.shape.panel_rows),
                            int64_t(v.items)})
            about += std::to_string(x) + " ";
          found.emplace_back(v.name, about);
        }
        return found;
      },
      "(name, all that it is) of every variant of the linear kernels, by number.");
  m.def(
      "variants_for",
      [](const std::string& level, int layout, int row_class) {
        if (layout < 0 || layout >= kLayouts) throw std::invalid_argument("no such layout");
        return variants_for(kernels_for(level.c_str()), Layout(layout), row_class);
      },
      "level"_a, "layout"_a, "row_class"_a);
  nanobind::list ends;
  for (int64_t end : kRowClassEnds) ends.append(end);
  m.attr("ROW_CLASS_ENDS") = nanobind::tuple(ends);
}

}  // namespace kvasir
