#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "bind/bind.h"
#include "sample/likeliest.h"
#include "sample/rows.h"
#include "sample/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvasir {
namespace {

using Row = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstRow = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = std::vector<int32_t>;
using Scored = std::vector<std::pair<int32_t, float>>;
using Answer = std::tuple<int32_t, float, int32_t, Scored>;
using Drafted = std::tuple<int32_t, Ids>;

Answer draw(const Sampler& sampler, int32_t slot, Row logits, int64_t out_index, const Ids& path,
            int32_t target, int64_t columns, std::optional<Mask> mask, bool drafts, int32_t drafted) {
  if (int64_t(logits.shape(0)) != sampler.vocab())
    throw nb::value_error("logits must have one entry per token of the vocabulary");
  if (columns < 0) throw nb::value_error("columns must not be negative");
  if (mask && int64_t(mask->shape(0)) * 32 < sampler.vocab())
    throw nb::value_error("a mask must have one bit per token of the vocabulary");
  nb::gil_scoped_release unlocked;
  std::vector<RowMax> runs;
  for (int64_t at = 0; columns > 0 && at < sampler.vocab(); at += columns)
    runs.push_back(row_max(logits.data() + at, std::min(columns, sampler.vocab() - at)));
  Drawn drawn = sampler.sample(slot, logits.data(), out_index, path, target, {runs, columns},
                               mask ? mask->data() : nullptr, {drafts, drafted, 0});
  return {drawn.token, drawn.logprob, drawn.rank, std::move(drawn.top)};
}

Drafted draft(const Sampler& sampler, int32_t slot, Row logits, int64_t out_index, const Ids& path,
              int32_t siblings) {
  if (int64_t(logits.shape(0)) != sampler.vocab())
    throw nb::value_error("logits must have one entry per token of the vocabulary");
  nb::gil_scoped_release unlocked;
  Drawn drawn = sampler.sample(slot, logits.data(), out_index, path, -1, {}, nullptr, {true, -1, siblings});
  return {drawn.token, std::move(drawn.siblings)};
}

template <class T>
bool read(nb::handle value, T& field) {
  return nb::try_cast(value, field);
}

bool read(nb::handle value, std::vector<uint32_t>& words) {
  if (!nb::isinstance<nb::bytes>(value)) return false;
  const auto bytes = nb::borrow<nb::bytes>(value);
  words.resize(bytes.size() / sizeof(uint32_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.c_str(), words.size() * sizeof(uint32_t));
  return bytes.size() % sizeof(uint32_t) == 0;
}

void open(Sampler& sampler, int32_t slot, nb::handle params, const Ids& prompt, const Ids& output) {
  SlotParams own;
  own.each([&](const char* name, auto& field) {
    if (!read(params.attr(name), field))
      throw nb::type_error((std::string(name) + " is not what the sampler takes").c_str());
  });
  sampler.open(slot, own, prompt, output);
}

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler", "Sampler states by slot.")
      .def(nb::init<int32_t, int32_t, int32_t>(), "max_slots"_a, "vocab"_a, "kept"_a = 0)
      .def("open", &open, "slot"_a, "params"_a, "prompt"_a, "output"_a)
      .def("commit", &Sampler::commit, "slot"_a, "token"_a)
      .def("sample", &draw, "slot"_a, "logits"_a.noconvert(), "out_index"_a, "path"_a, "target"_a,
           "columns"_a = 0, "mask"_a = nb::none(), "drafts"_a = false, "drafted"_a = -1)
      .def("draft", &draft, "slot"_a, "logits"_a.noconvert(), "out_index"_a, "path"_a, "siblings"_a = 0);
  m.def(
      "likeliest",
      [](ConstRow row, int64_t k) {
        Ids ids(size_t(std::max<int64_t>(k, 0)));
        likeliest(row.data(), int64_t(row.shape(0)), ids.data(), int64_t(ids.size()));
        ids.erase(std::find(ids.begin(), ids.end(), -1), ids.end());
        return ids;
      },
      "row"_a, "k"_a);
  m.def(
      "hash_row", [](ConstRow row) { return hash_row(row.data(), static_cast<int64_t>(row.shape(0))); },
      "row"_a);
  nb::list fields;
  SlotParams().each([&](const char* name, auto&) { fields.append(name); });
  m.attr("SLOT_PARAMS") = nb::tuple(fields);
  m.def("philox", &philox_word, "seed"_a, "out_index"_a, "token"_a, "stream"_a = 0);
}

}  // namespace kvasir
