#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bind/bind.h"
#include "bind/kv_layer.h"
#include "cpu/pack.h"
#include "cpu/select.h"
#include "program/drafter.h"
#include "program/program.h"

namespace nb = nanobind;

namespace kvasir {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadOnlyBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
T* field(nb::dict arrays, const char* name) {
  using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
  if (!arrays.contains(name)) throw std::invalid_argument(std::string("missing step array ") + name);
  Array found;  // of this very type: a converted copy would be gone when it is written
  if (!nb::try_cast<Array>(arrays[name], found, false))
    throw std::invalid_argument(std::string("step array ") + name + " has another type");
  return found.data();
}

StepDrafts step_drafts(nb::dict d) {
  const auto shape = d["kept_inputs"].attr("shape");
  return {nb::cast<int64_t>(shape[nb::int_(1)]),
          nb::cast<int64_t>(shape[nb::int_(0)]),
          nb::cast<int64_t>(shape[nb::int_(2)]),
          field<int32_t>(d, "state_at"),
          field<int32_t>(d, "n_certain"),
          field<int32_t>(d, "slots"),
          field<int32_t>(d, "taken"),
          field<float>(d, "kept_inputs")};
}

StepArrays step_arrays(nb::dict d) {
  StepArrays a{};
  a.tokens = field<int32_t>(d, "tokens");
  a.pos = field<int32_t>(d, "pos");
  a.store = field<int32_t>(d, "store");
  a.seq = field<int32_t>(d, "seq");
  a.parent = field<int32_t>(d, "parent");
  a.seq_begin = field<int32_t>(d, "seq_begin");
  a.seq_start = field<int32_t>(d, "seq_start");
  a.seq_tree = field<uint8_t>(d, "seq_tree");
  a.tables = field<int32_t>(d, "tables");
  a.logit_token = field<int32_t>(d, "logit_token");
  a.logit_slot = field<int32_t>(d, "logit_slot");
  a.logit_target = field<int32_t>(d, "logit_target");
  a.logit_out_index = field<int64_t>(d, "logit_out_index");
  a.path_begin = field<int32_t>(d, "path_begin");
  a.path = field<int32_t>(d, "path");
  a.max_path = nb::cast<int64_t>(d["path"].attr("size"));
  if (d.contains("sampled")) a.sampled = field<uint8_t>(d, "sampled");
  if (d.contains("candidates")) {
    a.candidates = field<int32_t>(d, "candidates");
    a.n_candidates = nb::cast<int64_t>(d["candidates"].attr("shape")[nb::int_(1)]);
  }
  if (d.contains("ranked")) {
    a.siblings = field<int32_t>(d, "ranked");
    a.n_siblings = nb::cast<int64_t>(d["ranked"].attr("shape")[nb::int_(1)]);
  }
  if (d.contains("types")) a.types = field<int32_t>(d, "types");
  if (d.contains("ends")) a.ends = field<int32_t>(d, "ends");
  if (d.contains("rope_positions")) a.rope_positions = field<int32_t>(d, "rope_positions");
  if (d.contains("sums")) a.sums = field<double>(d, "sums");
  if (d.contains("kept_inputs")) a.drafts = step_drafts(d);
  a.drawn = field<int32_t>(d, "drawn");
  a.logprob = field<float>(d, "logprob");
  a.rank = field<int32_t>(d, "rank");
  a.hash = field<uint64_t>(d, "hash");
  a.top_count = field<int32_t>(d, "top_count");
  a.top_ids = field<int32_t>(d, "top_ids");
  a.top_logprobs = field<float>(d, "top_logprobs");
  return a;
}

template <class T>
std::vector<T> structs(const ReadOnlyBytes& bytes) {
  if (bytes.size() % sizeof(T)) throw std::invalid_argument("bytes are no whole structs");
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(out.data()), bytes.data(), bytes.size());
  return out;
}

using Ints = nb::ndarray<int32_t, nb::c_contig, nb::device::cpu>;

using WeightTuple = std::tuple<nb::object, int, int64_t, int64_t, int64_t>;  // bytes, layout, N, K, tiles

// Keeps every array that the program points into.
struct BoundProgram {
  std::unique_ptr<Program> program;
  std::unique_ptr<Drafter> drafter;
  Program* pool = nullptr;
  std::vector<nb::object> owners;
  int64_t vocab;
};

ProgramSpec spec_of(nb::dict sizes, const ReadOnlyBytes& records, const ReadOnlyBytes& buffers) {
  ProgramSpec spec;
  spec.records = structs<Record>(records);
  spec.buffers = structs<Buffer>(buffers);
  spec.max_tokens = nb::cast<int64_t>(sizes["max_tokens"]);
  spec.max_logits = nb::cast<int64_t>(sizes["max_logits"]);
  spec.logits_tile = nb::cast<int64_t>(sizes["logits_tile"]);
  spec.top_k = nb::cast<int64_t>(sizes["top_k"]);
  spec.head_dim_max = nb::cast<int64_t>(sizes["head_dim_max"]);
  spec.group_max = nb::cast<int64_t>(sizes["group_max"]);
  spec.draft_floats = nb::cast<int64_t>(sizes["draft_floats"]);
  spec.hashes = nb::cast<bool>(sizes["hashes"]);
  return spec;
}

void add_kv_layers(ProgramSpec* spec, uint8_t* memory, const ReadOnlyBytes& places) {
  for (const KvPlace& place : structs<KvPlace>(places)) {
    const KvLayer layer = kv_layer(memory, place);
    if (layer_bytes(layer) != place.layer_bytes)
      throw std::invalid_argument("a KV layer of " + std::to_string(place.layer_bytes) +
                                  " bytes a block; the kernels have " + std::to_string(layer_bytes(layer)));
    spec->kv.push_back(layer);
    spec->kv_groups.push_back(int32_t(place.group));
  }
}

void make_program(BoundProgram* self, Pool& pool, const std::string& level, Sampler& sampler, nb::dict sizes,
                  ReadOnlyBytes records, ReadOnlyBytes buffers, std::vector<WeightTuple> weights, Bytes kv,
                  ReadOnlyBytes kv_places, std::vector<Floats> tables, Bytes arena, nb::dict arrays) {
  ProgramSpec spec = spec_of(sizes, records, buffers);
  BoundProgram made;  // becomes *self when nothing was refused
  for (const auto& [bytes, layout, N, K, tiles] : weights) {
    made.owners.push_back(bytes);
    spec.weights.push_back({nb::cast<ReadOnlyBytes>(bytes).data(), Layout(layout), N, K, tiles});
  }
  for (const Floats& table : tables) {
    made.owners.push_back(nb::cast(table));
    spec.tables.push_back(table.data());
  }
  add_kv_layers(&spec, kv.data(), kv_places);
  StepArrays a = step_arrays(arrays);
  a.max_seqs = nb::cast<int64_t>(sizes["max_seqs"]);
  a.max_blocks = nb::cast<int64_t>(sizes["max_blocks"]);
  a.max_top = nb::cast<int64_t>(sizes["max_top"]);
  made.vocab = nb::cast<int64_t>(sizes["vocab"]);
  for (nb::object owner : {nb::cast(kv), nb::cast(arena), nb::object(arrays)}) made.owners.push_back(owner);
  made.program =
      std::make_unique<Program>(pool, kernels_for(level.c_str()), sampler, std::move(spec), arena.data(), a);
  new (self) BoundProgram(std::move(made));
}

// The Fills of the step, and seconds that a row waits at most.
using MaskTuple = std::tuple<nb::object, double>;

StepMasks step_masks(const std::optional<MaskTuple>& masks, int64_t logits, int64_t vocab) {
  if (!masks) return {};
  const auto& [bound, seconds] = *masks;
  Fills& fills = fills_of(bound);
  if (fills.rows() < logits || fills.words() * 32 < vocab)
    throw std::invalid_argument("masks need [rows, vocab / 32] words");
  const auto wait =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  return {&fills, std::chrono::steady_clock::now() + wait};
}

void run(BoundProgram& self, int64_t tokens, int64_t seqs, int64_t logits, int64_t until,
         std::optional<Doubles> seconds, std::optional<Logits> out, std::optional<MaskTuple> masks,
         int64_t pooled, std::optional<std::tuple<int64_t, int64_t, int64_t>> of) {
  if (seconds && int64_t(seconds->size()) < self.program->phases())
    throw std::invalid_argument("seconds needs one entry per phase");
  if (out && (int64_t(out->shape(0)) < logits || int64_t(out->shape(1)) != self.vocab))
    throw std::invalid_argument("logits needs [rows, vocab]");
  double* times = seconds ? seconds->data() : nullptr;
  float* rows = out ? out->data() : nullptr;
  const StepMasks own = step_masks(masks, logits, self.vocab);
  nb::gil_scoped_release release;
  const StepSize size{tokens, seqs, logits};
  Piece piece;
  if (of) piece = {std::get<0>(*of), std::get<1>(*of), std::get<2>(*of)};
  self.program->run(size, own, until, times, rows, piece);
  if (self.pool && pooled && until < 0) self.pool->run({tokens, seqs, pooled}, {}, -1, nullptr, nullptr);
  if (self.drafter && until < 0) self.drafter->run(size);
}

void pool_with(BoundProgram& self, nb::object pool) {
  self.pool = nb::cast<BoundProgram&>(pool).program.get();
  self.owners.push_back(pool);
}

void draft_with(BoundProgram& self, const std::vector<nb::object>& drafts, nb::dict arrays,
                const std::vector<int32_t>& exports, int32_t carried) {
  const StepArrays& own = self.program->arrays();
  const auto ints = [&](const char* name, int64_t least) {
    const Ints found = nb::cast<Ints>(arrays[name], false);
    if (int64_t(found.size()) < least) throw std::invalid_argument(std::string(name) + " is too short");
    return found;
  };
  const Ints chains = ints("drafts", own.max_seqs), tokens = ints("follow_tokens", 1);
  const Ints siblings = ints("siblings", 0);
  if (chains.ndim() != 2 || int64_t(chains.shape(0)) < own.max_seqs)
    throw std::invalid_argument("drafts need [sequences, drafts]");
  if (siblings.ndim() != 3 || int64_t(siblings.shape(0)) < own.max_seqs ||
      siblings.shape(2) != chains.shape(1))
    throw std::invalid_argument("siblings need [sequences, ranks, drafts]");
  const DraftArrays a{ints("n_drafts", own.max_seqs).data(),
                      chains.data(),
                      int64_t(chains.shape(1)),
                      siblings.data(),
                      int64_t(siblings.shape(1)),
                      ints("follow_begin", own.max_seqs + 1).data(),
                      ints("follow_start", own.max_seqs).data(),
                      tokens.data(),
                      int64_t(tokens.size()),
                      carried < 0 ? nullptr : ints("successors", own.max_seqs).data()};
  std::vector<Export> found;
  for (const int32_t buffer : exports) found.push_back(self.program->exported(buffer));
  std::vector<Program*> programs;
  for (const nb::object& draft : drafts) {
    programs.push_back(nb::cast<BoundProgram&>(draft).program.get());
    self.owners.push_back(draft);
  }
  const Export own_rows = carried < 0 ? Export{} : programs.at(0)->exported(carried);
  self.drafter = std::make_unique<Drafter>(*self.program, std::move(programs), a, std::move(found), own_rows);
  self.owners.push_back(arrays);
}

Format format_named(const std::string& name) {
  for (size_t i = 0; i < std::size(kFormatNames); i++)
    if (name == kFormatNames[i]) return Format(i);
  throw std::invalid_argument("no kernel reads format " + name);
}

void pack_rows(Pool& pool, int layout, const std::string& format, ReadOnlyBytes rows, int64_t N, int64_t K,
               Bytes out, int64_t tile_first, int64_t tile_step) {
  const Format f = format_named(format);
  if (layout < 0 || layout >= kLayouts) throw std::invalid_argument("no such layout");
  if (!packs(f, Layout(layout))) throw std::invalid_argument("format " + format + " has another layout");
  if (N < 1 || K < 1 || tile_first < 0 || tile_step < 1)
    throw std::invalid_argument("sizes must be positive");
  if (f >= Format::q8_0 && K % (is_float(Layout(layout)) ? kGroup : kLayoutSizes[layout].elements))
    throw std::invalid_argument("quantized rows need K divisible by their blocks");
  if (int64_t(rows.size()) < N * row_bytes(f, K)) throw std::invalid_argument("rows are shorter than N x K");
  const int64_t tiles = (N + kTileCols - 1) / kTileCols;
  if (int64_t(out.size()) < (tile_first + (tiles - 1) * tile_step + 1) * tile_bytes(Layout(layout), K))
    throw std::invalid_argument("output is shorter than its tiles");
  const PackArgs args{Layout(layout), f, rows.data(), N, K, out.data(), tile_first, tile_step};
  nb::gil_scoped_release release;
  pack(pool, args);
}

}  // namespace

void bind_program(nb::module_& m) {
  m.attr("MAX_LOGIT_ROWS") = kMaxLogitRows;
  nb::class_<BoundProgram>(m, "Program")
      .def("__init__", &make_program, nb::arg("pool"), nb::arg("level"), nb::arg("sampler"), nb::arg("sizes"),
           nb::arg("records"), nb::arg("buffers"), nb::arg("weights"), nb::arg("kv"), nb::arg("kv_places"),
           nb::arg("tables"), nb::arg("arena"), nb::arg("arrays"), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 4>())
      .def("run", &run, nb::arg("tokens"), nb::arg("seqs"), nb::arg("logits"), nb::arg("until") = -1,
           nb::arg("seconds") = nb::none(), nb::arg("out") = nb::none(), nb::arg("masks") = nb::none(),
           nb::arg("pooled") = 0, nb::arg("piece") = nb::none())
      .def("draft_with", &draft_with, nb::arg("drafts"), nb::arg("arrays"), nb::arg("exports"),
           nb::arg("carried") = -1)
      .def("pool_with", &pool_with, nb::arg("pool"))
      .def(
          "choose",
          [](BoundProgram& self, int32_t weight, int row_class, int variant) {
            self.program->choose(weight, row_class, variant);
          },
          nb::arg("weight"), nb::arg("row_class"), nb::arg("variant"))
      .def_prop_ro("draft_seconds",
                   [](const BoundProgram& self) { return self.drafter ? self.drafter->seconds() : 0.0; })
      .def_prop_ro("phases", [](const BoundProgram& self) { return self.program->phases(); });
  m.def("pack_rows", &pack_rows, nb::arg("pool"), nb::arg("layout"), nb::arg("format"), nb::arg("rows"),
        nb::arg("N"), nb::arg("K"), nb::arg("out"), nb::arg("tile_first") = 0, nb::arg("tile_step") = 1);
  m.def(
      "packs",
      [](const std::string& format, int layout) {
        if (layout < 0 || layout >= kLayouts) throw std::invalid_argument("no such layout");
        for (size_t i = 0; i < std::size(kFormatNames); i++)
          if (format == kFormatNames[i]) return packs(Format(i), Layout(layout));
        return false;
      },
      nb::arg("format"), nb::arg("layout"));
  m.def(
      "tile_bytes", [](int layout, int64_t K) { return tile_bytes(Layout(layout), K); }, nb::arg("layout"),
      nb::arg("K"));
}

}  // namespace kvasir
