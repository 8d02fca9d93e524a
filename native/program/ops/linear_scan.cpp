#include "program/ops/linear_scan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "program/state_runs.h"

namespace kvasir {
namespace {

void check_sizes(const LinearScanArgs& a) {
  const bool is_divided = a.n_groups > 0 && a.n_heads % a.n_groups == 0;
  if (!is_divided || a.state_dim < 1 || a.state_dim > kMaxStateDim)
    throw std::invalid_argument("a scan of " + std::to_string(a.n_heads) + " heads in " +
                                std::to_string(a.n_groups) + " groups, states of " +
                                std::to_string(a.state_dim) + ": the kernels take 1 to " +
                                std::to_string(kMaxStateDim) + " and equal groups");
  const int64_t expected = int64_t(a.n_heads) * a.head_dim + 2 * int64_t(a.n_groups) * a.state_dim;
  if (a.ldx != expected)
    throw std::invalid_argument("a scan of rows of " + std::to_string(a.ldx) + " columns, expected " +
                                std::to_string(expected));
  const int64_t steps = int64_t(a.n_heads) * a.steps_of_head();
  if (a.ldstep != steps)
    throw std::invalid_argument("a scan with " + std::to_string(a.ldstep) + " steps of a token, expected " +
                                std::to_string(steps));
}

}  // namespace

LinearScan::LinearScan(const Record& r, const Workspace& w)
    : kernel(w.kernels.linear_scan),
      args{},
      kv(&w.kv(r.layer)),
      rows(&w.rows(r.layer)),
      workspace(&w),
      kept(r.kept) {
  args.rule = ScanRule(r.rule);
  args.x = w.floats(r.in[0]);
  args.ldx = w.columns(r.in[0]);
  args.step = w.floats(r.in[1]);
  args.ldstep = w.columns(r.in[1]);
  if (args.rule != ScanRule::ssd) {
    args.share = w.floats(r.in[2]);
    args.ldshare = w.columns(r.in[2]);
  }
  args.step_bias = w.vector(r.weight[0]);
  args.rate = w.vector(r.weight[1]);
  args.skip = w.vector(r.weight[2]);
  args.out = w.floats(r.out[0]);
  args.ldo = w.columns(r.out[0]);
  args.n_heads = r.n_heads;
  args.n_groups = r.n_groups;
  args.state_dim = r.state_dim;
  args.head_dim = r.n_heads > 0 ? int32_t(args.ldo / r.n_heads) : 0;
  args.tiled = r.tiled != 0;
  args.least = r.least;
  args.most = r.most;
  args.eps = r.eps;
  check_sizes(args);
  check_state(*kv, r.layer, args.ldo * args.state_dim * 4);
}

namespace {

// A head of one sequence.
struct Head {
  const LinearScan& op;
  LinearScanArgs args;
  float* out;  // of tokens whose results are known

  void run(int64_t m, int64_t n, const float* before, float* after) const {
    LinearScanArgs one = args;
    one.x += m * one.ldx;
    one.step += m * one.ldstep;
    if (one.share) one.share += m * one.ldshare;
    one.out += m * one.ldo;
    one.n = n;
    one.before = before;
    one.after = after;
    op.kernel(one);
  }
  void take(const float* row, const float* before, float* after) const {
    LinearScanArgs one = args;
    one.x = row + op.kept;
    one.step = one.x + args.ldx;
    if (one.share) one.share = one.step + args.ldstep;
    one.out = out;
    one.n = 1;
    one.before = before;
    one.after = after;
    op.kernel(one);
  }
  void keep(int64_t m, float* row) const {
    float* steps = row + op.kept + args.ldx;
    const int64_t n = args.steps_of_head(), first = n * args.h0;
    std::copy_n(args.step + m * args.ldstep + first, n, steps + first);
    if (args.share) steps[args.ldstep + args.h0] = args.share[m * args.ldshare + args.h0];
  }
};

}  // namespace

void LinearScan::run(const Extent&, int64_t item, int thread) const {
  float* scratch = workspace->scratch(thread);
  Head one{*this, args, scratch};
  one.args.h0 = int32_t(item % args.n_heads);
  one.args.h1 = one.args.h0 + 1;
  const int64_t state = int64_t(args.state_dim) * args.head_dim;
  each_run(*kv, *rows, {&workspace->arrays.drafts, item / args.n_heads}, one, [&](int64_t token) {
    return counted_from(scratch + args.ldo + (token - 1) * state, one.args.h0 * state);
  });
}

}  // namespace kvasir
