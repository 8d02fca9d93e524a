#include "program/ops/streams.h"

#include <cmath>
#include <cstring>

namespace kvasir {
namespace {

constexpr int64_t kLanes = 16;

// Sixteen chains over the columns, then one over these.
float mean_of_squares(const float* x, int64_t n) {
  float sums[kLanes] = {};
  const int64_t full = n / kLanes * kLanes;
  for (int64_t i = 0; i < full; i += kLanes)
    for (int64_t j = 0; j < kLanes; j++) sums[j] += x[i + j] * x[i + j];
  for (int64_t i = full; i < n; i++) sums[i - full] += x[i] * x[i];
  float sum = 0.0f;
  for (float each : sums) sum += each;
  return sum / float(n);
}

}  // namespace

SparseGate::SparseGate(const Record& r, const Workspace& w) : RowOp{w.kernels.sparse_gate, {}, w.rows_of(r)} {
  args.x = w.floats(r.in[0]);
  args.up = w.floats(r.in[1]);
  args.out = w.floats(r.out[0]);
  args.ld = args.N = w.columns(r.out[0]);
  args.deviations = r.scale;
  args.act = Act(r.act);
}

StreamOp::StreamOp(const Record& r, const Workspace& w)
    : rows(w.rows_of(r)),
      x(w.floats(r.in[0])),
      y(r.in[1] < 0 ? nullptr : w.floats(r.in[1])),
      shares(r.in[2] < 0 ? nullptr : w.floats(r.in[2])),
      out(w.floats(r.out[0])),
      n_x(w.columns(r.in[0])),
      n_y(r.in[1] < 0 ? 0 : w.columns(r.in[1])),
      n_shares(r.in[2] < 0 ? 0 : w.columns(r.in[2])),
      n_out(w.columns(r.out[0])),
      column(r.column) {}

template <class Row>
void StreamOp::each(const Extent& e, int64_t item, const Row& row) const {
  const int64_t m0 = item * kRowsPerItem, m1 = std::min(m0 + kRowsPerItem, rows(e));
  for (int64_t m = m0; m < m1; m++) row(x + m * n_x, y + m * n_y, shares + m * n_shares, out + m * n_out);
}

void TakeColumns::run(const Extent& e, int64_t item, int) const {
  each(e, item, [&](const float* from, const float*, const float*, float* to) {
    std::memcpy(to, from + column, size_t(n_out) * sizeof(float));
  });
}

void MixStreams::run(const Extent& e, int64_t item, int) const {
  const int64_t n = n_x / column, width = column;
  each(e, item, [&](const float* from, const float* share, const float*, float* to) {
    for (int64_t i = 0; i < n; i++) {
      float* mixed = to + i * width;
      for (int64_t k = 0; k < width; k++) mixed[k] = share[i * n] * from[k];
      for (int64_t j = 1; j < n; j++)
        for (int64_t k = 0; k < width; k++) mixed[k] += share[i * n + j] * from[j * width + k];
      for (int64_t k = 0; k < width; k++) mixed[k] += from[i * width + k];
    }
  });
}

void CorrectStreams::run(const Extent& e, int64_t item, int) const {
  each(e, item, [&](const float* from, const float* made, const float* share, float* to) {
    for (int64_t i = 0; i < n_shares; i++) {
      const float by = share[i] + 1.0f;
      const float* stream = from + i * n_y;
      for (int64_t k = 0; k < n_y; k++) to[i * n_y + k] = (made[k] - from[column + k]) * by + stream[k];
    }
  });
}

void AddToStreams::run(const Extent& e, int64_t item, int) const {
  each(e, item, [&](const float* from, const float* more, const float*, float* to) {
    std::memcpy(to, from, size_t(column) * sizeof(float));
    for (int64_t at = column; at < n_out; at += n_y)
      for (int64_t k = 0; k < n_y; k++) to[at + k] = from[at + k] + more[k];
  });
}

MatchRows::MatchRows(const Record& r, const Workspace& w) : StreamOp(r, w), eps(r.eps) {}

void MatchRows::run(const Extent& e, int64_t item, int) const {
  each(e, item, [&](const float* from, const float* like, const float*, float* to) {
    const float own = mean_of_squares(from, n_x);
    const float target = std::sqrt(mean_of_squares(like, n_y)), size = std::sqrt(own < eps ? eps : own);
    for (int64_t k = 0; k < n_out; k++) to[k] = from[k] * target / size;
  });
}

}  // namespace kvasir
