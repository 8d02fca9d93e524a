#include "program/program.h"

#include <algorithm>
#include <stdexcept>

#include "pool/pool.h"

namespace kvasir {
namespace {

bool is_beside(const Op& op, const Linear* first) {
  const Linear* linear = std::get_if<Linear>(&op);
  return first && linear && linear->rows == first->rows;
}

}  // namespace

Program::Program(Pool& pool, const Kernels& kernels, const Sampler& sampler, ProgramSpec spec, uint8_t* arena,
                 StepArrays arrays)
    : pool_(pool),
      n_threads_(pool.size()),
      workspace_(pool.size(), kernels, sampler, std::move(spec), arena, arrays) {
  ops_.reserve(workspace_.spec.records.size());
  for (const Record& r : workspace_.spec.records) ops_.push_back(make_op(r, workspace_));
  add_phases();
  connect_head();
  const int64_t repeats = ceil_div(workspace_.spec.max_logits, workspace_.spec.logits_tile);
  counters_ = std::vector<Counter>(size_t(phases() + (phases() - first_tail_) * repeats));
  for (Counter& counter : counters_) counter.shares = std::make_unique<Share[]>(size_t(n_threads_));
}

void Program::add_phases() {
  const std::vector<Record>& records = workspace_.spec.records;
  int64_t first_tail = -1;
  for (size_t r = 0; r < records.size(); r++) {
    if (r == 0 || records[r].phase != records[r - 1].phase) {
      const bool attends = std::holds_alternative<Attention>(ops_[r]);
      phases_.push_back({int64_t(r), int64_t(r), std::get_if<Linear>(&ops_[r]), attends});
    } else if (!is_beside(ops_[r], phases_.back().linear)) {
      phases_.back().linear = nullptr;
    }
    phases_.back().end = int64_t(r) + 1;
    if (records[r].tail && first_tail < 0) first_tail = phases() - 1;
  }
  first_tail_ = first_tail < 0 ? phases() : first_tail;
}

// Where a linear alone makes the logits that are sampled, its items find their largest.
void Program::connect_head() {
  const ProgramSpec& spec = workspace_.spec;
  Sample* sample = nullptr;
  int32_t logits = -1;
  for (size_t r = 0; r < ops_.size(); r++)
    if (Sample* found = std::get_if<Sample>(&ops_[r])) sample = found, logits = spec.records[r].in[0];
  if (sample == nullptr) return;
  Linear* head = nullptr;
  for (size_t r = 0; r < ops_.size(); r++) {
    const Record& record = spec.records[r];
    if (std::find(record.out, record.out + 3, logits) == record.out + 3) continue;
    Linear* writer = std::get_if<Linear>(&ops_[r]);
    if (head || !writer || !record.tail || writer->weight.N != sample->vocab) return;
    head = writer;
  }
  if (head == nullptr) return;
  maxima_ = std::make_unique<HeadMaxima>(head->cut, spec.logits_tile);
  head->maxima = maxima_.get();
  sample->maxima = maxima_.get();
}

void Program::run(StepSize size, const StepMasks& masks, int64_t until, double* seconds, float* logits,
                  Piece piece) {
  const ProgramSpec& spec = workspace_.spec;
  if (size.tokens < 1 || size.tokens > spec.max_tokens || size.seqs < 1 ||
      size.seqs > workspace_.arrays.max_seqs || size.logits < 0 || size.logits > spec.max_logits)
    throw std::invalid_argument("step larger than planned");
  if (piece.phase >= phases() || piece.part < 0 || piece.part >= piece.parts)
    throw std::invalid_argument("no such piece");
  until_ = until;
  piece_ = piece;
  seconds_ = seconds;
  size_ = size;
  reset();
  workspace_.begin(size, masks, logits);
  if (piece.is_first()) workspace_.cut.forget();
  pool_.run(enter, this);
  if (failure_) std::rethrow_exception(failure_);
  workspace_.end(size);
}

void Program::reset() {
  for (Counter& counter : counters_) {
    for (int64_t i = 0; i < n_threads_; i++) counter.shares[i].next.store(0, std::memory_order_relaxed);
    counter.done.store(0, std::memory_order_relaxed);
  }
  failure_ = nullptr;
}

}  // namespace kvasir
