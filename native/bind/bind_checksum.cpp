#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind/bind.h"
#include "cpu/checksum.h"

namespace nb = nanobind;

namespace kvasir {
namespace {

using ReadOnlyBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void checked_checksums(Pool& pool, ReadOnlyBytes data, int64_t chunk, Sums out) {
  if (chunk < 1) throw std::invalid_argument("chunks need at least one byte");
  const int64_t n = int64_t(data.size()), chunks = n / chunk + (n % chunk != 0);
  if (int64_t(out.size()) != chunks) throw std::invalid_argument("out needs one sum per chunk");
  nb::gil_scoped_release release;
  checksums(pool, data.data(), n, chunk, out.data());
}

uint64_t checksum(const nb::bytes& data, uint64_t seed) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data.c_str());
  const auto n = int64_t(data.size());
  nb::gil_scoped_release release;
  return xxh64(bytes, n, seed);
}

}  // namespace

void bind_checksum(nb::module_& m) {
  m.def("checksum", &checksum, nb::arg("data"), nb::arg("seed") = 0);
  m.def("checksums", &checked_checksums, nb::arg("pool"), nb::arg("data"), nb::arg("chunk"), nb::arg("out"));
}

}  // namespace kvasir
