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

using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Addresses = std::tuple<uintptr_t, uintptr_t, uintptr_t>;
// A row, and a kvasir.sampling.masks.NativeFill.
using FillTuple = std::tuple<int64_t, std::tuple<Addresses, uintptr_t, uintptr_t, std::vector<uint32_t>>>;
constexpr double kMostSeconds = 1e6;  // a clock counts more, but no infinity
using FilledTuple = std::tuple<int32_t, bool, int32_t, double, double>;

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

void put(Fills& self, std::vector<FillTuple> asked) {
  std::vector<Fill> fills;
  for (FillTuple& one : asked) fills.push_back(fill_of(std::move(one), self.rows()));
  self.put(std::move(fills));
}

std::vector<FilledTuple> wait(Fills& self, double seconds, double each) {
  const auto duration = [](double s) {
    return std::chrono::duration_cast<Fills::Clock::duration>(
        std::chrono::duration<double>(std::min(s, kMostSeconds)));
  };
  std::vector<FilledTuple> found;
  nb::gil_scoped_release release;
  for (const Filled& one : self.wait(duration(seconds), duration(each)))
    found.emplace_back(int32_t(one.state), one.cancelled, one.only, one.seconds, one.cpu_seconds);
  return found;
}

bool bring(Fills& self, int64_t row, Mask mask) {
  if (int64_t(mask.shape(0)) != self.words()) throw nb::value_error("a mask must have the words of a row");
  return self.bring(row, mask.data());
}

int32_t flag(Fills& self, int64_t row) {
  if (row < 0 || row >= self.rows()) throw nb::index_error("no such logit row");
  return self.flag(row);
}

std::vector<uint32_t> mask(Fills& self, int64_t row) {
  if (flag(self, row) != int32_t(MaskFlag::here)) throw nb::value_error("the row has no mask");
  return {self.bits(row), self.bits(row) + self.words()};
}

}  // namespace

Fills& fills_of(nb::handle bound) { return nb::cast<Fills&>(bound); }

void bind_fills(nb::module_& m) {
  nb::class_<Fills>(m, "Fills")
      .def(
          "__init__",
          [](Fills* self, int64_t rows, const std::vector<int64_t>& waiting, int64_t words) {
            new (self) Fills(rows, waiting, words);
          },
          "rows"_a, "waiting"_a, "words"_a)
      .def("bring", &bring, "row"_a, "mask"_a)
      .def("abandon", &Fills::abandon)
      .def("flag", &flag, "row"_a)
      .def("mask", &mask, "row"_a)
      .def("put", &put, "fills"_a)
      .def(
          "help", [](Fills& self) { return self.help(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("wait", &wait, "seconds"_a, "each"_a);
}

}  // namespace kvasir
