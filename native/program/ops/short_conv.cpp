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
    : kernel(w.kernels.short_conv), args{}, kv(&w.kv(r.layer)), rows(&w.rows(r.layer)) {
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

void ShortConv::run(const Extent&, int64_t item, int) const {
  const int32_t first = int32_t(item % chunks) * kChannels;
  each_run(*kv, *rows, item / chunks, [&](int64_t m, int64_t n, const float* before, float* after) {
    ShortConvArgs one = args;
    one.x += m * one.ldx;
    one.out += m * one.ldo;
    one.n = n;
    one.c0 = first;
    one.c1 = std::min(first + kChannels, one.width);
    one.before = before;
    one.after = after;
    kernel(one);
  });
}

}  // namespace kvasir
