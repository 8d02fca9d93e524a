// A lowered program: ops over an arena, replayed by the pool. One call is one step.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "program/op.h"
#include "program/share.h"
#include "program/workspace.h"

namespace kvasir {

class Pool;

// A part of the items of one phase, of programs that are run piece by piece: all phases in turn, and of each
// all parts, give what a whole run does. phase -1: everything.
struct Piece {
  int64_t phase = -1, part = 0, parts = 1;
  bool is_first() const { return phase <= 0 && part == 0; }
};

// f32 rows of the arena [T, columns] that another program reads.
struct Export {
  float* rows;
  int64_t columns;
};

class Program {
 public:
  Program(Pool& pool, const Kernels& kernels, const Sampler& sampler, ProgramSpec spec, uint8_t* arena,
          StepArrays arrays);
  // until: index of the last record to run, -1 for all. seconds: [phases] or null, time per phase. logits:
  // [R, vocab] or null.
  void run(StepSize size, const StepMasks& masks, int64_t until, double* seconds, float* logits,
           Piece piece = {});
  int64_t phases() const { return int64_t(phases_.size()); }
  const StepArrays& arrays() const { return workspace_.arrays; }
  Export exported(int32_t buffer) const { return {workspace_.floats(buffer), workspace_.columns(buffer)}; }
  // Of the step that ran.
  std::span<const int32_t> path(int64_t logit_row) const { return workspace_.path(logit_row); }
  void keep_drafts(int64_t n) { workspace_.keep_drafts(n); }
  // Between two steps.
  void choose(int32_t weight, int row_class, int variant) { workspace_.choose(weight, row_class, variant); }
  void set_draft(int64_t logit_row, int64_t draft, int32_t token) {
    workspace_.set_draft(logit_row, draft, token);
  }

 private:
  // Ops [begin, end), which do not depend on each other.
  struct Phase {
    int64_t begin, end;
    const Linear* linear;  // the first of them, where there are no others
    bool attends;
  };
  // Items of a phase that one thread is the first to claim, and the next of them.
  struct Share {
    alignas(64) std::atomic<int64_t> next{0};
  };
  // Of one phase: a share per thread, and how many items are done.
  struct Counter {
    std::unique_ptr<Share[]> shares;
    alignas(64) std::atomic<int32_t> done{0};  // the width that a futex waits on
  };
  // Weights of a coming phase that a thread has yet to fetch.
  struct Ahead {
    int64_t phase = -1;
    const uint8_t *at = nullptr, *end = nullptr;
    void fetch();
  };

  void add_phases();
  void connect_head();
  void reset();
  static void enter(void* self, int thread);
  void replay(int thread);
  void run_phase(int64_t phase, const Extent& e, int thread, Counter& counter, Ahead& ahead);
  void run_items(const Phase& phase, const Extent& e, int thread, int64_t first, const ItemRange& items,
                 Counter& counter, Share& share);
  void try_item(const Op& op, const Extent& e, int64_t item, int thread);
  int64_t phase_items(const Phase& phase, const Extent& e) const;
  int64_t shares(const Phase& phase, const Extent& e) const;
  void look_ahead(int64_t phase, const Extent& e, int thread, Ahead& ahead) const;
  Bytes start_of_share(const Phase& phase, const Extent& e, int thread) const;

  Pool& pool_;
  const int64_t n_threads_;
  Workspace workspace_;
  std::vector<Op> ops_;  // by record
  std::vector<Phase> phases_;
  int64_t first_tail_ = 0;  // phases from here on are repeated for every tile of logit rows
  std::unique_ptr<HeadMaxima> maxima_;
  std::vector<Counter> counters_;
  // of the running step
  StepSize size_{};
  int64_t until_ = -1;
  Piece piece_;
  double* seconds_ = nullptr;
  std::mutex failed_;
  std::exception_ptr failure_;  // the first
};

}  // namespace kvasir
