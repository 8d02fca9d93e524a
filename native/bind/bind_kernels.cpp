// The kernels of the table by themselves, over NumPy arrays: for tests and microbenchmarks, not for serving.
// Those of experts are in bind_experts.cpp.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/kv_layer.h"
#include "cpu/pack.h"
#include "cpu/select.h"
#include "cpu/variants.h"

namespace kvasir {
namespace {

// Rows of activations; the type of the array says which: float32, uint16 (bf16) or int8 (q8).
struct BoundRows {
  nb::object owner;
  std::optional<Matrix> scales;
  std::optional<Sums> sums;
  Rows rows;
  int64_t n_rows, K;
};

void make_rows(BoundRows* self, nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu> data, int block,
               std::optional<Matrix> scales, std::optional<Sums> sums) {
  const int64_t n = data.shape(0), K = data.shape(1);
  DType dtype = DType::f32;
  if (data.dtype() == nb::dtype<uint16_t>())
    dtype = DType::bf16;
  else if (data.dtype() == nb::dtype<int8_t>())
    dtype = DType::q8;
  else
    require(data.dtype() == nb::dtype<float>(), "rows are float32, uint16 (bf16) or int8 (q8)");
  if (dtype == DType::q8) {
    require(block >= kGroup && block % kGroup == 0 && K % block == 0,
            "block divides K and is a multiple of 32");
    require(scales && int64_t(scales->shape(0)) == n && int64_t(scales->shape(1)) == K / block,
            "scales are [rows, K / block]");
    require(
        sums && int64_t(sums->shape(0)) == n && int64_t(sums->shape(1)) == K / kGroup && sums->shape(2) == 2,
        "sums are [rows, K / 32, 2]");
  }
  const Rows rows{dtype, block, data.data(), K, data_or_null(scales), data_or_null(sums)};
  new (self) BoundRows{nb::cast(data), scales, sums, rows, n, K};
}

// KV blocks of one layer, K of all heads before V of all heads.
struct BoundKv {
  Bytes memory;
  KvLayer layer;
  int64_t n_blocks;
};

void make_kv(BoundKv* self, Bytes memory, int64_t n_blocks, int block_size, int n_kv_heads, int head_dim,
             int dtype, int latent) {
  KvLayer layer = kv_layer(memory.data(), {0, 0, 0, block_size, n_kv_heads, head_dim, dtype, 0, latent});
  layer.block_bytes = layer_bytes(layer);
  require(int64_t(memory.size()) >= n_blocks * layer.block_bytes, "memory is shorter than its blocks");
  new (self) BoundKv{memory, layer, n_blocks};
}

struct BoundStep {
  Array<const int32_t, 1> seq, pos, store, parent, seq_begin, seq_start;
  Array<const uint8_t, 1> seq_tree;
  Array<const int32_t, 2> tables;
  StepRows rows;
};

void make_step(BoundStep* self, Array<const int32_t, 1> seq, Array<const int32_t, 1> pos,
               Array<const int32_t, 1> store, Array<const int32_t, 1> parent,
               Array<const int32_t, 1> seq_begin, Array<const int32_t, 1> seq_start,
               Array<const uint8_t, 1> seq_tree, Array<const int32_t, 2> tables) {
  const int64_t T = seq.size(), S = seq_start.size();
  require(int64_t(pos.size()) == T && int64_t(store.size()) == T && int64_t(parent.size()) == T,
          "seq, pos, store and parent have one entry per token");
  require(
      int64_t(seq_begin.size()) == S + 1 && int64_t(seq_tree.size()) == S && int64_t(tables.shape(0)) == S,
      "seq_begin, seq_tree and tables fit the sequences");
  const StepRows rows{T,
                      S,
                      seq.data(),
                      pos.data(),
                      store.data(),
                      parent.data(),
                      seq_begin.data(),
                      seq_start.data(),
                      seq_tree.data(),
                      tables.data(),
                      int64_t(tables.shape(1))};
  new (self) BoundStep{seq, pos, store, parent, seq_begin, seq_start, seq_tree, tables, rows};
}

// Every block that the step's tokens reach is there.
void require_blocks(const BoundKv& kv, const BoundStep& step) {
  const StepRows& r = step.rows;
  for (int64_t t = 0; t < r.n_tokens; t++) {
    require(r.seq[t] >= 0 && r.seq[t] < r.n_seqs && r.pos[t] >= 0 && r.store[t] >= 0,
            "a token leaves the step");
    require(r.parent[t] < t, "a parent comes before its child");
    const int64_t last = r.store[t] / kv.layer.block_size;
    require(last < r.max_blocks, "a token is stored past its table");
    for (int64_t b = 0; b <= last; b++) {
      const int32_t block = r.tables[r.seq[t] * r.max_blocks + b];
      require(block >= 0 && block < kv.n_blocks, "a table names a block that does not exist");
    }
  }
}

// The kernels of a level, its linears as one of their variants.
struct BoundKernels : Kernels {
  int variant;
};

void linear(const BoundKernels& k, int layout, ConstBytes w, int64_t N, const BoundRows& x, Matrix out,
            int64_t tile0, int64_t tile1, int64_t m0, int64_t m1, int epilogue, int act,
            std::optional<ConstMatrix> residual, MaybeVector<float> bias, MaybeVector<int32_t> row_index) {
  require(layout >= 0 && layout < kLayouts, "no such layout");
  const Layout of = Layout(layout);
  const DType takes = of == Layout::bf16 || is_scaled(of) ? DType::bf16
                      : is_float(of)                      ? DType::f32
                                                          : DType::q8;
  require(x.rows.dtype == takes && x.K % (is_float(of) ? 1 : kLayoutSizes[layout].elements) == 0,
          "rows of another type or length than the layout takes");
  require(!is_compact(Layout(layout)) || x.rows.block <= kMaxCompactBlock,
          "blocks of activations are longer than a compact layout takes");
  const bool is_gated = Epilogue(epilogue) == Epilogue::gated;
  const int64_t columns = is_gated ? N / 2 : N;
  const int64_t tiles = (columns + kTileCols - 1) / kTileCols * (is_gated ? 2 : 1);
  require(int64_t(w.size()) >= tiles * tile_bytes(Layout(layout), x.K), "w is shorter than its tiles");
  require_range(tile0, tile1, tiles);
  require_range(m0, m1, out.shape(0));
  require(int64_t(out.shape(1)) >= columns, "out has fewer columns than the weight");
  require(!bias || int64_t(bias->size()) == N, "bias is [N]");
  require(residual.has_value() == (Epilogue(epilogue) == Epilogue::add),
          "a residual is added, or there is none");
  require(!residual || (residual->shape(0) == out.shape(0) && residual->shape(1) == out.shape(1)),
          "residual is shaped as out");
  require(row_index ? int64_t(row_index->size()) >= m1 : x.n_rows >= m1, "x has fewer rows than the range");
  for (int64_t m = m0; row_index && m < m1; m++)
    require(row_index->data()[m] >= 0 && row_index->data()[m] < x.n_rows, "a row index leaves x");
  const int64_t ldo = int64_t(out.shape(1)), at = m0 * ldo + first_column(Epilogue(epilogue), tile0);
  const std::vector<int> has = variants_for(k, Layout(layout), row_class(m1 - m0));
  const bool is_chosen = std::find(has.begin(), has.end(), k.variant) != has.end();
  const Variant& v = variants()[is_chosen ? size_t(k.variant) : 0];
  k.linear[int(v.form)][layout]({w.data(), Layout(layout), int32_t(x.K), int32_t(N), tile0, tile1, &x.rows,
                                 m0, m1, out.data() + at, ldo, Epilogue(epilogue), Act(act),
                                 residual ? residual->data() + at : nullptr, data_or_null(bias),
                                 data_or_null(row_index), v.shape});
}

void norm(const Kernels& k, ConstMatrix x, MaybeVector<float> weight, float eps, const BoundRows& out,
          int64_t m0, int64_t m1) {
  require(int64_t(x.shape(1)) == out.K && (!weight || int64_t(weight->size()) == out.K),
          "x, weight and out share K");
  require_range(m0, m1, x.shape(0));
  require_range(m0, m1, out.n_rows);
  k.norm({x.data(), out.K, data_or_null(weight), nullptr, int32_t(out.K), eps, out.rows, m0, m1});
}

void layer_norm(const Kernels& k, ConstMatrix x, Array<const float, 1> weight, MaybeVector<float> bias,
                float eps, const BoundRows& out, int64_t m0, int64_t m1) {
  require(int64_t(x.shape(1)) == out.K && int64_t(weight.size()) == out.K &&
              (!bias || int64_t(bias->size()) == out.K),
          "x, weight, bias and out share K");
  require_range(m0, m1, x.shape(0));
  require_range(m0, m1, out.n_rows);
  k.layer_norm({x.data(), out.K, weight.data(), data_or_null(bias), int32_t(out.K), eps, out.rows, m0, m1});
}

// x: all rows of the columns from `column` on.
void cast(const Kernels& k, ConstMatrix x, const BoundRows& out, int64_t m0, int64_t m1, int64_t column) {
  const int64_t K = int64_t(x.shape(1));
  require(0 <= column && column + K <= out.K, "out has fewer columns than x");
  require(out.rows.dtype != DType::q8 || (column % out.rows.block == 0 && K % out.rows.block == 0),
          "the columns are whole blocks");
  require_range(m0, m1, x.shape(0));
  require_range(m0, m1, out.n_rows);
  k.cast({x.data() + m0 * K, K, int32_t(K), out.rows, m0, m1, int32_t(column)});
}

void rope_write(const Kernels& k, ConstMatrix qkv, Matrix q, int n_heads, bool neox, ConstMatrix table,
                ConstMatrix q_table, int norm, MaybeVector<float> q_norm, MaybeVector<float> k_norm,
                float eps, const BoundKv& kv, const BoundStep& step, int64_t m0, int64_t m1) {
  const int hd = kv.layer.head_dim, n_kv = kv.layer.n_kv_heads;
  require_blocks(kv, step);
  require_range(m0, m1, step.rows.n_tokens);
  require_range(m0, m1, qkv.shape(0));
  require_range(m0, m1, q.shape(0));
  const bool shares = QkNorm(norm) == QkNorm::all && int64_t(qkv.shape(1)) == (n_heads + n_kv) * hd;
  require(
      (shares || int64_t(qkv.shape(1)) == (n_heads + 2 * n_kv) * hd) && int64_t(q.shape(1)) == n_heads * hd,
      "qkv is [T, (H + 2 KV) head_dim], q [T, H head_dim]");
  require(table.shape(1) % 2 == 0 && int(table.shape(1)) <= hd, "rotary_dim is even and at most head_dim");
  require(q_table.shape(0) == table.shape(0) && q_table.shape(1) == table.shape(1),
          "the tables of q and k are as large");
  const bool bare = QkNorm(norm) == QkNorm::turned && !q_norm && !k_norm;
  require(0 <= norm && norm < kQkNorms && (bare || (norm != 0) == (q_norm && k_norm)),
          "norms of q and k, or none");
  const bool wide = QkNorm(norm) == QkNorm::width;
  require(
      !norm || bare ||
          (int(q_norm->size()) == (wide ? n_heads : 1) * hd && int(k_norm->size()) == (wide ? n_kv : 1) * hd),
      "norms are [head_dim], of the width [heads * head_dim]");
  for (int64_t t = m0; t < m1; t++)
    require(step.rows.pos[t] < int64_t(table.shape(0)), "a position past the table");
  k.rope_write({qkv.data(), int64_t(qkv.shape(1)), q.data(), int64_t(q.shape(1)), n_heads, n_kv, hd,
                int32_t(table.shape(1)), neox, table.data(), q_table.data(), QkNorm(norm),
                data_or_null(q_norm), data_or_null(k_norm), eps, &kv.layer, &step.rows, m0, m1});
}

struct FreeAligned {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t(64)); }
};
using AlignedFloats = std::unique_ptr<float[], FreeAligned>;
AlignedFloats aligned_floats(int64_t n) { return AlignedFloats(new (std::align_val_t(64)) float[size_t(n)]); }

// Each the only token of its sequence, whose tables begin alike.
void require_shared(const Array<const int32_t, 1>& tokens, int64_t shared, const BoundKv& kv,
                    const BoundStep& step) {
  const StepRows& r = step.rows;
  require(tokens.size() > 0 && int64_t(tokens.size()) <= r.n_tokens && shared >= 0, "tokens of the step");
  for (size_t i = 0; i < tokens.size(); i++) {
    const int64_t t = tokens(i);
    require(t >= 0 && t < r.n_tokens, "a token leaves the step");
    const int64_t s = r.seq[t], first = r.seq[tokens(0)];
    require(r.seq_begin[s] == t && r.seq_begin[s + 1] == t + 1 && !r.seq_tree[s], "sequences of one token");
    require(shared <= r.store[t] + 1, "no more is shared than is stored");
    for (int64_t b = 0; b < (shared + kv.layer.block_size - 1) / kv.layer.block_size; b++)
      require(r.tables[s * r.max_blocks + b] == r.tables[first * r.max_blocks + b], "tables begin alike");
  }
}

// split: each segment of the context by itself, the last first, then combined. tokens: in place of seq, t0
// and t1; out has a row for each.
void attention(const Kernels& k, ConstMatrix q, Matrix out, float scale, float softcap, int window,
               const BoundKv& kv, const BoundStep& step, int64_t seq, int64_t t0, int64_t t1, int kv_head,
               MaybeVector<float> sinks, bool split, MaybeVector<int32_t> ends, bool chunked,
               MaybeVector<int32_t> tokens, int64_t shared, MaybeVector<float> slopes) {
  const int hd = kv.layer.head_dim, n_heads = int(q.shape(1)) / hd;
  require_blocks(kv, step);
  if (tokens) {
    require_shared(*tokens, shared, kv, step);
    require(!split && !ends && int64_t(q.shape(0)) == step.rows.n_tokens, "rows of all tokens, whole");
    seq = step.rows.seq[(*tokens)(0)];
    t0 = 0;
    t1 = int64_t(tokens->size());
  }
  require(tokens || (seq >= 0 && seq < step.rows.n_seqs && t0 < t1 && step.rows.seq_begin[seq] <= t0 &&
                     t1 <= step.rows.seq_begin[seq + 1] && t1 <= int64_t(q.shape(0))),
          "[t0, t1) are tokens of the sequence");
  require(kv_head >= 0 && kv_head < kv.layer.n_kv_heads && n_heads % kv.layer.n_kv_heads == 0 && n_heads > 0,
          "whole groups of heads");
  require(int64_t(q.shape(1)) == n_heads * hd && q.shape(0) == out.shape(0) && q.shape(1) == out.shape(1),
          "q and out are [T, H head_dim]");
  require(!sinks || int(sinks->size()) == n_heads, "sinks are [n_heads]");
  require(!slopes || (int(slopes->size()) == n_heads && softcap <= 0),
          "slopes are [n_heads], without a softcap");
  require(!ends || int64_t(ends->size()) == step.rows.n_tokens, "ends are [T]");
  for (int64_t t = t0; ends && t < t1; t++)
    require(
        step.rows.pos[t] < (*ends)(t) && (*ends)(t) <= step.rows.store[step.rows.seq_begin[seq + 1] - 1] + 1,
        "a token sees itself and what is stored");
  require(!chunked || window > 0, "chunks have a size");
  const int group = n_heads / kv.layer.n_kv_heads;
  const AlignedFloats scratch = aligned_floats(attention_scratch(t1 - t0, group, hd));
  AttentionArgs args{};
  args.q = q.data();
  args.ldq = args.ldo = int64_t(q.shape(1));
  args.out = out.data() + t0 * args.ldo + kv_head * group * hd;
  args.n_heads = n_heads;
  args.scale = scale;
  args.softcap = softcap;
  args.window = window;
  args.chunked = chunked;
  args.ends = data_or_null(ends);
  args.kv = &kv.layer;
  args.rows = &step.rows;
  args.seq = seq;
  args.t0 = t0;
  args.t1 = t1;
  args.tokens = data_or_null(tokens);
  args.shared = shared;
  args.kv_head = kv_head;
  args.sinks = data_or_null(sinks);
  args.slopes = data_or_null(slopes);
  args.scratch = scratch.get();
  if (!split) return k.attention(args);
  const int32_t* seen = ends ? ends->data() : step.rows.pos;
  const int64_t last = *std::max_element(seen + t0, seen + t1) - (ends ? 1 : 0), n = last / kAttnSplit + 1;
  const AlignedFloats partial = aligned_floats(n * attention_partial(t1 - t0, group, hd));
  args.partial = partial.get();
  for (args.segment = n - 1; args.segment >= 0; args.segment--) k.attention(args);
  args.segment = n;
  k.attention_combine(args);
}

void embed(const Kernels& k, int layout, ConstBytes w, Array<const int32_t, 1> ids, float scale, Matrix out,
           int64_t m0, int64_t m1) {
  const int64_t K = out.shape(1);
  require(layout >= 0 && layout < kLayouts && (layout < 2 || K % kLayoutSizes[layout].elements == 0),
          "quantized layouts need K divisible by their blocks");
  require_range(m0, m1, out.shape(0));
  require_range(m0, m1, ids.size());
  for (int64_t m = m0; m < m1; m++)
    require(ids.data()[m] >= 0 &&
                (ids.data()[m] / kTileCols + 1) * tile_bytes(Layout(layout), K) <= int64_t(w.size()),
            "an id past the rows of the weight");
  k.embed({w.data(), Layout(layout), int32_t(K), ids.data(), scale, out.data(), K, m0, m1});
}

void add(const Kernels& k, ConstMatrix a, ConstMatrix b, Matrix out, int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1);
  require(int64_t(a.shape(1)) == N && int64_t(b.shape(1)) == N, "a, b and out share N");
  for (int64_t n : {a.shape(0), b.shape(0), out.shape(0)}) require_range(m0, m1, n);
  k.add({a.data(), b.data(), out.data(), int32_t(N), N, m0, m1});
}

void scale(const Kernels& k, ConstMatrix x, Matrix out, float factor, float softcap, int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1);
  require(int64_t(x.shape(1)) == N, "x and out share N");
  for (int64_t n : {x.shape(0), out.shape(0)}) require_range(m0, m1, n);
  k.scale({x.data(), out.data(), int32_t(N), N, factor, softcap, m0, m1});
}

void gate_rows(const Kernels& k, ConstMatrix x, ConstMatrix gate, Matrix out, int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1);
  require(int64_t(x.shape(1)) == N && gate.shape(1) == 1, "x and out share N, a row has one gate");
  for (int64_t n : {x.shape(0), gate.shape(0), out.shape(0)}) require_range(m0, m1, n);
  k.gate_rows({x.data(), gate.data(), out.data(), int32_t(N), N, m0, m1});
}

void sparse_gate(const Kernels& k, ConstMatrix x, ConstMatrix up, Matrix out, float deviations, int act,
                 int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1);
  require(int64_t(x.shape(1)) == N && int64_t(up.shape(1)) == N, "x, up and out share N");
  for (int64_t n : {x.shape(0), up.shape(0), out.shape(0)}) require_range(m0, m1, n);
  k.sparse_gate({x.data(), up.data(), out.data(), int32_t(N), N, deviations, Act(act), m0, m1});
}

void mul(const Kernels& k, ConstMatrix x, ConstMatrix y, Matrix out, int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1);
  require(int64_t(x.shape(1)) == N && int64_t(y.shape(1)) >= N, "x and out share N, y has as many columns");
  for (int64_t n : {x.shape(0), out.shape(0)}) require_range(m0, m1, n);
  if (y.shape(0) != 1) require_range(m0, m1, y.shape(0));
  const int64_t ldy = y.shape(0) == 1 ? 0 : int64_t(y.shape(1));
  k.mul({x.data(), y.data(), ldy, out.data(), int32_t(N), N, m0, m1});
}

}  // namespace

void bind_kernels(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundRows>(m, "Rows",
                        "Rows of activations: float32, uint16 (bf16) or int8 (q8) with scales and sums.")
      .def("__init__", &make_rows, "data"_a, "block"_a = 0, "scales"_a = nb::none(), "sums"_a = nb::none());
  nb::class_<BoundKv>(m, "KvBlocks", "KV blocks of one layer.")
      .def("__init__", &make_kv, "memory"_a, "n_blocks"_a, "block_size"_a, "n_kv_heads"_a, "head_dim"_a,
           "dtype"_a, "latent"_a = 0);
  nb::class_<BoundStep>(m, "StepRows", "The rows of one step; see native/kernels.h.")
      .def("__init__", &make_step, "seq"_a, "pos"_a, "store"_a, "parent"_a, "seq_begin"_a, "seq_start"_a,
           "seq_tree"_a, "tables"_a);
  nb::class_<BoundKernels, Kernels>(m, "Kernels", "The kernel table of one level.")
      .def(
          "__init__",
          [](BoundKernels* self, const std::string& level, int variant) {
            require(variant >= 0 && size_t(variant) < variants().size(), "no such variant");
            new (self) BoundKernels{kernels_for(level.c_str()), variant};
          },
          "level"_a, "variant"_a = 0)
      .def_prop_ro("level", [](const BoundKernels& self) { return self.level; })
      .def("linear", &linear, "layout"_a, "w"_a, "N"_a, "x"_a, "out"_a, "tile0"_a, "tile1"_a, "m0"_a, "m1"_a,
           "epilogue"_a = 0, "act"_a = 0, "residual"_a = nb::none(), "bias"_a = nb::none(),
           "row_index"_a = nb::none())
      .def("norm", &norm, "x"_a, "weight"_a.none(), "eps"_a, "out"_a, "m0"_a, "m1"_a)
      .def("layer_norm", &layer_norm, "x"_a, "weight"_a, "bias"_a.none(), "eps"_a, "out"_a, "m0"_a, "m1"_a)
      .def("cast", &cast, "x"_a, "out"_a, "m0"_a, "m1"_a, "column"_a = 0)
      .def("rope_write", &rope_write, "qkv"_a, "q"_a, "n_heads"_a, "neox"_a, "table"_a, "q_table"_a, "norm"_a,
           "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a, "kv"_a, "step"_a, "m0"_a, "m1"_a)
      .def("attention", &attention, "q"_a, "out"_a, "scale"_a, "softcap"_a, "window"_a, "kv"_a, "step"_a,
           "seq"_a, "t0"_a, "t1"_a, "kv_head"_a, "sinks"_a = nb::none(), "split"_a = false,
           "ends"_a = nb::none(), "chunked"_a = false, "tokens"_a = nb::none(), "shared"_a = 0,
           "slopes"_a = nb::none())
      .def("embed", &embed, "layout"_a, "w"_a, "ids"_a, "scale"_a, "out"_a, "m0"_a, "m1"_a)
      .def("add", &add, "a"_a, "b"_a, "out"_a, "m0"_a, "m1"_a)
      .def("scale", &scale, "x"_a, "out"_a, "factor"_a, "softcap"_a, "m0"_a, "m1"_a)
      .def("gate_rows", &gate_rows, "x"_a, "gate"_a, "out"_a, "m0"_a, "m1"_a)
      .def("sparse_gate", &sparse_gate, "x"_a, "up"_a, "out"_a, "deviations"_a, "act"_a, "m0"_a, "m1"_a)
      .def("mul", &mul, "x"_a, "y"_a, "out"_a, "m0"_a, "m1"_a);
}

}  // namespace kvasir
