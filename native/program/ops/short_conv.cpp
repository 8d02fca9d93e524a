#include "program/ops/short_conv.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "program/state_runs.h"

namespace kvasir {
namespace {

constexpr int32_t kChannels = 256;  // of one item: 24 in a decode of one row of 2,048 channels and 3 layers

}  // namespace

ShortConv::ShortConv(const Record& r, const Workspace& w)
    : kernel(w.kernels.short_conv),
      args{},
      kv(&w.kv(r.layer)),
      rows(&w.rows(r.layer)),
      workspace(&w),
      kept(r.kept),
      kept_out(r.kept_out) {
  if (r.n_taps < 2 || r.n_taps > kMaxTaps)
    throw std::invalid_argument("a convolution of " + std::to_string(r.n_taps) +
                                " taps: the kernels take 2 to " + std::to_string(kMaxTaps));
  args.x = w.floats(r.in[0]);
  args.ldx = w.columns(r.in[0]);
  args.out = w.floats(r.out[0]);
  args.ldo = args.width = w.columns(r.out[0]);
  args.gated = r.gated != 0;
  args.bias = w.vector(r.weight[1]);
  check_state(*kv, r.layer, int64_t(r.n_taps - 1) * args.width * 4);
  args.taps = w.vector(r.weight[0]);
  args.n_taps = r.n_taps;
  chunks = ceil_div(args.width, kChannels);
}

namespace {

// Some channels of one sequence. Of a drafted token u is kept; the result of an accepted one is what the scan
// behind takes in.
struct Channels {
  const ShortConv& op;
  ShortConvArgs args;
  float* out;  // of results that nobody reads

  void run(int64_t m, int64_t n, const float* before, float* after) const {
    ShortConvArgs one = args;
    one.x += m * args.ldx;
    one.out += m * args.ldo;
    one.n = n;
    one.before = before;
    one.after = after;
    op.kernel(one);
  }
  void take(float* row, const float* before, float* after) const {
    ShortConvArgs one = args;
    one.gated = false;
    one.x = row + op.kept;
    one.out = op.kept_out < 0 ? out : row + op.kept_out;
    one.n = 1;
    one.before = before;
    one.after = after;
    op.kernel(one);
  }
  void keep(int64_t m, float* row) const {
    const float* x = args.x + m * args.ldx;
    const float* by = x + 2 * int64_t(args.width);
    for (int32_t c = args.c0; c < args.c1; c++) row[op.kept + c] = args.gated ? x[c] * by[c] : x[c];
  }
};

}  // namespace

void ShortConv::run(const Extent&, int64_t item, int thread) const {
  const int32_t first = int32_t(item % chunks) * kChannels;
  float* scratch = workspace->scratch(thread);
  Channels one{*this, args, scratch};
  one.args.c0 = first;
  one.args.c1 = std::min(first + kChannels, args.width);
  const int64_t state = int64_t(args.n_taps - 1) * args.width;
  each_run(*kv, *rows, {&workspace->arrays.drafts, item / chunks}, one,
           [&](int64_t token) { return scratch + args.width + (token - 1) * state; });
}

}  // namespace kvasir
