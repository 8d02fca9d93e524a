// NumPy arrays as arguments of bindings, and checks of them.
#pragma once
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <stdexcept>

namespace kvasir {

namespace nb = nanobind;

template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Matrix = Array<float, 2>;
using ConstMatrix = Array<const float, 2>;
using Bytes = Array<uint8_t, 1>;
using ConstBytes = Array<const uint8_t, 1>;
template <class T>
using MaybeVector = std::optional<Array<const T, 1>>;

using Sums = Array<int32_t, 3>;

inline void require(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

template <class A>
auto data_or_null(const std::optional<A>& a) {
  return a ? a->data() : nullptr;
}

// Begin and end of the items, inside [0, n].
inline void require_range(int64_t begin, int64_t end, int64_t n) {
  require(0 <= begin && begin <= end && end <= n, "the range leaves the rows");
}

}  // namespace kvasir
