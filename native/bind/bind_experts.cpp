// The kernels of experts by themselves, over NumPy arrays: for tests and microbenchmarks, not for serving.
#include <cstdint>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "kernels.h"

namespace kvasir {
namespace {

void route(const Kernels& k, ConstMatrix logits, MaybeVector<float> bias, bool normalize,
           Array<int32_t, 2> ids, Matrix weights, int64_t m0, int64_t m1, int score, int n_groups,
           int top_groups, int group_score, float scale) {
  const int64_t E = logits.shape(1), top = ids.shape(1);
  require(E <= kMaxExperts && (!bias || int64_t(bias->size()) == E), "at most 1024 experts, a bias of each");
  require(n_groups > 0 && E % n_groups == 0 && top_groups > 0 && top_groups <= n_groups,
          "groups divide the experts, and some are kept");
  require(GroupScore(group_score) == GroupScore::best || E / n_groups > 1, "two experts in each group");
  require(top > 0 && top <= E / n_groups * top_groups && int64_t(weights.shape(1)) == top,
          "ids and weights are [T, k], k <= experts of the groups that are kept");
  for (int64_t n : {logits.shape(0), ids.shape(0), weights.shape(0)}) require_range(m0, m1, n);
  k.route({logits.data(), E, data_or_null(bias), int32_t(E), int32_t(top), Score(score), n_groups, top_groups,
           GroupScore(group_score), normalize, scale, ids.data(), weights.data(), m0, m1});
}

void spread(const Kernels& k, ConstMatrix x, Array<const int32_t, 1> row, ConstMatrix weights, Matrix out,
            int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1), top = weights.shape(1), n_rows = out.shape(0);
  require(int64_t(x.shape(1)) == N, "x and out share N");
  for (int64_t n : {weights.shape(0), x.shape(0)}) require_range(m0, m1, n);
  require(int64_t(row.size()) >= m1 * top, "one row of out per pair");
  for (int64_t p = m0 * top; p < m1 * top; p++)
    require(row.data()[p] >= 0 && row.data()[p] < n_rows, "a pair's row leaves out");
  k.spread({x.data(), row.data(), weights.data(), int32_t(top), int32_t(N), out.data(), N, m0, m1});
}

void combine(const Kernels& k, ConstMatrix y, MaybeVector<int32_t> row, ConstMatrix weights, Matrix out,
             int64_t m0, int64_t m1) {
  const int64_t N = out.shape(1), top = weights.shape(1), n_rows = y.shape(0);
  require(int64_t(y.shape(1)) == N, "y and out share N");
  for (int64_t n : {weights.shape(0), out.shape(0)}) require_range(m0, m1, n);
  require(row ? int64_t(row->size()) >= m1 * top : n_rows >= m1 * top, "one row of y per pair");
  for (int64_t p = m0 * top; row && p < m1 * top; p++)
    require(row->data()[p] >= 0 && row->data()[p] < n_rows, "a pair's row leaves y");
  k.combine(
      {y.data(), N, data_or_null(row), weights.data(), int32_t(top), int32_t(N), out.data(), N, m0, m1});
}

}  // namespace

void bind_experts(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Kernels>(m, "KernelTable", "Kernels of experts, of any level's table.")
      .def("route", &route, "logits"_a, "bias"_a.none(), "normalize"_a, "ids"_a, "weights"_a, "m0"_a, "m1"_a,
           "score"_a = 0, "n_groups"_a = 1, "top_groups"_a = 1, "group_score"_a = 0, "scale"_a = 1.0f)
      .def("spread", &spread, "x"_a, "row"_a, "weights"_a, "out"_a, "m0"_a, "m1"_a)
      .def("combine", &combine, "y"_a, "row"_a.none(), "weights"_a, "out"_a, "m0"_a, "m1"_a);
}

}  // namespace kvasir
