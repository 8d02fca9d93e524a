#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "sample/fills.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvasir {
namespace {

using Masks = nb::ndarray<uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Addresses = std::tuple<uintptr_t, uintptr_t, uintptr_t>;
// A row, and a kvasir.sampling.masks.NativeFill.
using FillTuple = std::tuple<int64_t, std::tuple<Addresses, uintptr_t, uintptr_t, std::vector<uint32_t>>>;
constexpr double kMostSeconds = 1e6;  // a clock counts more, but no infinity
using FilledTuple = std::tuple<int32_t, bool, int32_t, double, double>;

// The arrays stay while they may be written.
struct BoundFills {
  Masks bits;
  Flags ready;
  Fills fills;
  BoundFills(Masks bits, Flags ready)
      : bits(bits), ready(ready), fills(bits.data(), ready.data(), int64_t(bits.shape(1))) {}
};

template <class F>
F function_at(uintptr_t address) {
  if (address == 0) throw nb::value_error("a function of a library has no address");
  return reinterpret_cast<F>(address);
}

Fill fill_of(FillTuple&& asked, int64_t n_rows) {
  auto& [row, fill] = asked;
  auto& [calls, matcher, handle, tokens] = fill;
  if (row < 0 || row >= n_rows) throw nb::index_error("no such logit row");
  return {function_at<decltype(Fill::consume)>(std::get<0>(calls)),
          function_at<decltype(Fill::mask)>(std::get<1>(calls)),
          function_at<decltype(Fill::cancel)>(std::get<2>(calls)),
          reinterpret_cast<void*>(matcher),
          reinterpret_cast<const void*>(handle),
          std::move(tokens),
          row};
}

void put(BoundFills& self, std::vector<FillTuple> asked) {
  const int64_t n_rows = std::min(int64_t(self.ready.shape(0)), int64_t(self.bits.shape(0)));
  std::vector<Fill> fills;
  for (FillTuple& one : asked) fills.push_back(fill_of(std::move(one), n_rows));
  self.fills.put(std::move(fills));
}

std::vector<FilledTuple> wait(BoundFills& self, double seconds, double each) {
  const auto duration = [](double s) {
    return std::chrono::duration_cast<Fills::Clock::duration>(
        std::chrono::duration<double>(std::min(s, kMostSeconds)));
  };
  std::vector<FilledTuple> found;
  nb::gil_scoped_release release;
  for (const Filled& one : self.fills.wait(duration(seconds), duration(each)))
    found.emplace_back(int32_t(one.state), one.cancelled, one.only, one.seconds, one.cpu_seconds);
  return found;
}

}  // namespace

Fills* fills_of(nb::handle bound) { return bound.is_none() ? nullptr : &nb::cast<BoundFills&>(bound).fills; }

void bind_fills(nb::module_& m) {
  nb::class_<BoundFills>(m, "Fills")
      .def(nb::init<Masks, Flags>(), "bits"_a.noconvert(), "ready"_a.noconvert())
      .def("put", &put, "fills"_a)
      .def(
          "help", [](BoundFills& self) { return self.fills.help(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("wait", &wait, "seconds"_a, "each"_a);
}

}  // namespace kvasir
