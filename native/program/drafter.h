// Draft steps behind a step of the target, in the same call: what exec/drafting.py says, without allocation.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"

namespace kvasir {

// What rows ask for and are told, beside the arrays of the target's step.
struct DraftArrays {
  const int32_t* n_drafts;  // [S]
  int32_t* drafts;          // [S, max_drafts]; -1 from where nothing could be drawn
  int64_t max_drafts;
  int32_t* siblings;  // [S, ranks, max_drafts]: the next best in their places, -1 where there is none
  int64_t ranks;
  // What the draft program takes in first: of sequence s tokens [begin[s], begin[s + 1]), which lie from
  // storage index start[s] on and end where its row does, or before. begin[0] < 0: the tokens of all rows.
  const int32_t* follow_begin;  // [S + 1]
  const int32_t* follow_start;  // [S]
  int32_t* follow_tokens;       // [T]; references only in the places of the row's own
  int64_t max_follows;
  const int32_t* successors;  // [S] of a head: what follows a row that does not draw, -1: unknown
};

class Drafter {
 public:
  // The draft program reads the target's arrays, which its steps overwrite, and has results of its own. Both
  // programs stay where they are.
  // carried: of a head, what of its own stands in place of its one export behind the first token of a chain;
  // else null.
  // drafts: the first drafts the first token of a chain, and so on; the last one all others.
  Drafter(Program& target, std::vector<Program*> drafts, DraftArrays arrays, std::vector<Export> exports,
          Export carried);
  // What it is to take in of the target's step, which has run, then as many steps as rows ask for.
  void run(StepSize size);
  // That the last run took.
  double seconds() const { return seconds_; }

 private:
  // The newest token of a sequence, and what is drafted behind it.
  struct Chain {
    int64_t seq;
    int64_t name;  // last logit row of the sequence, by which references name its drafts
    int64_t at;    // of the exports: the row of the newest token that the target computed
    int32_t slot, n_drafts;
    int32_t first, newest;            // tokens: the target drew the first
    int32_t position, rope_position;  // of its first entry
    int64_t out_index;                // of the first
    std::span<const int32_t> path;    // before the first
  };

  // Makes chains of trees: what the target drew of each is left, at the places of its positions.
  void settle(StepSize& size);
  void settle_tree(int64_t first_row, int64_t end_row);
  int64_t child(int64_t row, int64_t end_row) const;
  void keep_row(int64_t row, int32_t token);
  void keep_token(int32_t token);
  int32_t drawn(int64_t row) const { return a_.drawn[logit_rows_[size_t(row)]]; }
  void find_chains(StepSize size);
  Chain chain_of(int64_t seq, int64_t first_row, int64_t end_row) const;
  int32_t next_rope_position(int32_t token) const;
  // Of the rows of the step that takes tokens in; how many there are.
  int64_t follow(StepSize size);
  void name_followed(int64_t seq);
  // Drafts follow what the target drew of its tree.
  bool takes_path(int64_t seq) const { return had_tree_[size_t(seq)] && drafts_.n_drafts[seq] > 0; }
  void put(int64_t at, int64_t seq, int32_t token, int32_t position);
  // A head: in place of each token the one after it. Then logit rows where chains begin; how many there are.
  void shift(StepSize size);
  int64_t ask();
  // Of the rows of draft step j; how many there are.
  int64_t write(int32_t j, int64_t seqs);
  void write_row(Chain& chain, int32_t j, int32_t i, int32_t& path);
  void write_logits(const Chain& chain, int32_t j, int32_t i, int32_t token, int32_t& path);
  Program& program(int32_t j) const { return *programs_[std::min(size_t(j), programs_.size() - 1)]; }
  bool is_head() const { return carried_.rows != nullptr; }
  void read(int32_t j);

  Program& target_;
  const std::vector<Program*> programs_;
  const StepArrays& a_;
  const DraftArrays drafts_;
  const std::vector<Export> exports_;
  const Export carried_;
  std::vector<Chain> chains_;
  int32_t n_tokens_ = 0;             // of the settled step
  std::vector<int32_t> logit_rows_;  // of the target, which its logit rows are
  std::vector<int32_t> last_rows_;   // of the target, by sequence
  std::vector<uint8_t> had_tree_;    // by sequence
  std::vector<int32_t> first_of_;    // by sequence, of the tokens that are taken in
  std::vector<int32_t> paths_;       // what was drawn of trees, one behind the other
  double seconds_ = 0;
};

}  // namespace kvasir
