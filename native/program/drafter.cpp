#include "program/drafter.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace kvasir {

Drafter::Drafter(Program& target, std::vector<Program*> drafts, DraftArrays arrays,
                 std::vector<Export> exports, Export carried)
    : target_(target),
      programs_(std::move(drafts)),
      a_(target.arrays()),
      drafts_(arrays),
      exports_(std::move(exports)),
      carried_(carried) {
  if (is_head() && (exports_.size() != 1 || exports_[0].columns != carried.columns || !arrays.successors))
    throw std::invalid_argument("a head goes on with rows like the one export that it reads");
  if (programs_.empty()) throw std::invalid_argument("nothing drafts");
  chains_.reserve(size_t(a_.max_seqs));
  last_rows_.resize(size_t(a_.max_seqs));
  had_tree_.resize(size_t(a_.max_seqs));
  first_of_.resize(size_t(a_.max_seqs));
  logit_rows_.reserve(size_t(drafts_.max_follows));
  paths_.reserve(size_t(drafts_.max_follows));
  target_.keep_drafts(drafts_.max_drafts * (1 + drafts_.ranks));
}

void Drafter::run(StepSize size) {
  const auto began = std::chrono::steady_clock::now();
  seconds_ = 0;
  settle(size);
  find_chains(size);
  if (is_head() && drafts_.follow_begin[0] >= 0) {
    if (!chains_.empty())
      throw std::invalid_argument("a head is asked for drafts in a step that it does not read");
    return;
  }
  if (is_head()) {
    shift(size);
    const int64_t n = ask();
    program(0).run({size.tokens, size.seqs, n}, {}, -1, nullptr, nullptr);
    read(0);
  } else if (const int64_t n = follow(size)) {
    program(0).run({n, size.seqs, 0}, {}, -1, nullptr, nullptr);
  }
  for (int32_t j = is_head();; j++) {
    const int64_t n = write(j, size.seqs);
    if (n == 0) break;
    program(j).run({n, size.seqs, n}, {}, -1, nullptr, nullptr);
    read(j);
  }
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void Drafter::settle(StepSize& size) {
  logit_rows_.clear();
  n_tokens_ = 0;
  int64_t row = 0;
  for (int64_t s = 0; s < size.seqs; s++) {
    const int32_t begin = a_.seq_begin[s], end = a_.seq_begin[s + 1];
    const int64_t first = row;
    while (row < size.logits && a_.logit_token[row] < end) row++;
    last_rows_[size_t(s)] = int32_t(row - 1);
    had_tree_[size_t(s)] = a_.seq_tree[s];
    a_.seq_tree[s] = 0;
    const int32_t before = begin - n_tokens_;
    a_.seq_begin[s] = n_tokens_;
    if (had_tree_[size_t(s)]) {
      settle_tree(first, row);
      continue;
    }
    for (int64_t r = first; r < row; r++) keep_row(r, a_.logit_token[r] - before);
    for (int32_t t = begin; t < end; t++) keep_token(t);
  }
  a_.seq_begin[size.seqs] = n_tokens_;
  size.tokens = n_tokens_;
  size.logits = int64_t(logit_rows_.size());
}

// Each of its tokens has a logit row. What is kept lies before what is still looked at.
void Drafter::settle_tree(int64_t first, int64_t end) {
  for (int64_t row = first; row >= 0;) {
    const int64_t next = child(row, end);
    const int32_t token = a_.logit_token[row];
    a_.parent[token] = -1;
    a_.store[token] = a_.pos[token];
    keep_row(row, n_tokens_);
    keep_token(token);
    row = next;
  }
}

// The logit row of what the target drew behind the token of `row`; -1: nobody drafted it.
int64_t Drafter::child(int64_t row, int64_t end) const {
  for (int64_t r = row + 1; r < end; r++) {
    const int32_t token = a_.logit_token[r];
    if (a_.parent[token] == a_.logit_token[row] && a_.tokens[token] == a_.drawn[row]) return r;
  }
  return -1;
}

void Drafter::keep_row(int64_t row, int32_t token) {
  const size_t i = logit_rows_.size();
  a_.logit_token[i] = token;
  a_.logit_slot[i] = a_.logit_slot[row];
  a_.logit_target[i] = a_.logit_target[row];
  a_.logit_out_index[i] = a_.logit_out_index[row];
  logit_rows_.push_back(int32_t(row));
}

void Drafter::keep_token(int32_t token) {
  const int32_t to = n_tokens_++;
  if (to == token) return;
  for (int32_t* values : {a_.tokens, a_.pos, a_.store, a_.seq, a_.parent, a_.types, a_.ends})
    if (values) values[to] = values[token];
  if (a_.rope_positions) std::copy_n(a_.rope_positions + 3 * token, 3, a_.rope_positions + 3 * to);
  for (const Export& e : exports_)
    std::memmove(e.rows + to * e.columns, e.rows + token * e.columns, size_t(e.columns) * sizeof(float));
}

// Where a token was drawn or scored that is known; elsewhere the next of the row, behind its last what was
// told.
void Drafter::shift(StepSize size) {
  for (int64_t s = 0; s < size.seqs; s++) {
    const int32_t begin = a_.seq_begin[s], last = a_.seq_begin[s + 1] - 1;
    std::copy(a_.tokens + begin + 1, a_.tokens + last + 1, a_.tokens + begin);
    a_.tokens[last] = std::max(drafts_.successors[s], 0);
  }
  for (int64_t r = 0; r < size.logits; r++) {
    const int32_t scored = a_.logit_target[r];
    a_.tokens[a_.logit_token[r]] = std::max(scored >= 0 ? scored : drawn(r), 0);
  }
}

int64_t Drafter::ask() {
  int32_t n = 0, path = 0;
  for (const Chain& chain : chains_) write_logits(chain, 0, n++, int32_t(chain.at), path);
  a_.path_begin[n] = path;
  return n;
}

int64_t Drafter::follow(StepSize size) {
  const int32_t *begin = drafts_.follow_begin, *start = drafts_.follow_start;
  if (begin[0] < 0) return size.tokens;
  if (begin[size.seqs] > drafts_.max_follows)
    throw std::invalid_argument("a draft program takes in more tokens than a step has");
  for (int64_t s = 0; s < size.seqs; s++) name_followed(s);
  paths_.clear();
  for (int64_t s = 0; s < size.seqs; s++) {
    if (takes_path(s))
      paths_.insert(paths_.end(), a_.tokens + a_.seq_begin[s] + 1, a_.tokens + a_.seq_begin[s + 1]);
  }
  int64_t n = 0;
  auto path = paths_.begin();
  for (int64_t s = 0; s < size.seqs; s++) {
    const int64_t n_path = takes_path(s) ? a_.seq_begin[s + 1] - a_.seq_begin[s] - 1 : 0;
    const int64_t n_own = begin[s + 1] - begin[s];
    if (n + n_own + n_path > drafts_.max_follows)
      throw std::invalid_argument(
          "a draft program takes in more tokens than a step has, with those of trees");
    const int32_t at = n_own ? start[s] : a_.seq_start[s] + 1;
    first_of_[size_t(s)] = int32_t(n);
    for (int64_t i = 0; i < n_own; i++) put(n++, s, drafts_.follow_tokens[begin[s] + i], at + int32_t(i));
    for (int64_t i = 0; i < n_path; i++) put(n++, s, *path++, at + int32_t(n_own + i));
    a_.seq_start[s] = at;
  }
  std::copy_n(first_of_.begin(), size.seqs, a_.seq_begin);
  a_.seq_begin[size.seqs] = int32_t(n);
  return n;
}

void Drafter::put(int64_t at, int64_t seq, int32_t token, int32_t position) {
  a_.tokens[at] = token;
  a_.pos[at] = a_.store[at] = position;
  a_.seq[at] = int32_t(seq);
  a_.parent[at] = -1;
}

// Ids in the places of references: the target has them.
void Drafter::name_followed(int64_t s) {
  const int32_t begin = drafts_.follow_begin[s], end = drafts_.follow_begin[s + 1];
  const int32_t own = a_.seq_begin[s] - a_.seq_start[s];  // storage index to token of the step
  const int32_t first = drafts_.follow_start[s];
  if (end < begin || first < 0 || own + first + end - begin > a_.seq_begin[s + 1])
    throw std::invalid_argument("a draft program takes in tokens behind the end of their row");
  for (int32_t t = begin; t < end; t++) {
    const int32_t at = own + first + t - begin;
    if (drafts_.follow_tokens[t] >= 0) continue;
    if (at < a_.seq_begin[s])
      throw std::invalid_argument("a draft program takes in a reference before its row");
    drafts_.follow_tokens[t] = a_.tokens[at];
  }
}

void Drafter::find_chains(StepSize size) {
  chains_.clear();
  for (int64_t s = 0, r = 0; s < size.seqs; s++) {
    const int64_t first = r;
    while (r < size.logits && a_.logit_token[r] < a_.seq_begin[s + 1]) r++;
    const int32_t n = drafts_.n_drafts[s];
    if (n < 0 || n > drafts_.max_drafts || (n > 0 && r == first))
      throw std::invalid_argument("a row asks for more drafts than there can be, or draws nothing");
    if (n > 0) chains_.push_back(chain_of(s, first, r));
  }
}

Drafter::Chain Drafter::chain_of(int64_t seq, int64_t first, int64_t end) const {
  int64_t row = first;  // goes on along the drafts that the target drew as well
  while (row + 1 < end && a_.tokens[a_.logit_token[row + 1]] == drawn(row)) row++;
  const int32_t token = a_.logit_token[row];
  return {seq,
          last_rows_[size_t(seq)],
          token,
          a_.logit_slot[row],
          drafts_.n_drafts[seq],
          drawn(row),
          drawn(row),
          a_.pos[token] + 1 - is_head(),
          next_rope_position(token) - is_head(),
          a_.logit_out_index[row],
          target_.path(logit_rows_[size_t(row)])};
}

// Behind an image its longest side counts.
int32_t Drafter::next_rope_position(int32_t token) const {
  if (!a_.rope_positions) return 0;
  const int32_t* at = a_.rope_positions + 3 * token;
  return std::max({at[0], at[1], at[2]}) + 1;
}

int64_t Drafter::write(int32_t j, int64_t seqs) {
  int32_t n = 0, path = 0;
  auto chain = chains_.begin();
  for (int64_t s = 0; s < seqs; s++) {
    a_.seq_begin[s] = n;
    if (chain == chains_.end() || chain->seq != s) continue;
    if (j < chain->n_drafts) write_row(*chain, j, n++, path);
    chain++;
  }
  a_.seq_begin[seqs] = n;
  a_.path_begin[n] = path;
  return n;
}

void Drafter::write_row(Chain& chain, int32_t j, int32_t i, int32_t& path) {
  a_.tokens[i] = std::max(chain.newest, 0);
  a_.pos[i] = a_.store[i] = a_.seq_start[chain.seq] = chain.position + j;
  for (int32_t axis = 0; a_.rope_positions && axis < 3; axis++)
    a_.rope_positions[3 * i + axis] = chain.rope_position + j;
  a_.seq[i] = int32_t(chain.seq);
  a_.parent[i] = -1;
  a_.seq_tree[chain.seq] = 0;
  write_logits(chain, j, i, i, path);
  // sequences ascend, so that no row is overwritten before it is read
  for (const Export& e : exports_) {
    const float* from = is_head() ? carried_.rows : e.rows;
    std::memmove(e.rows + i * e.columns, from + chain.at * e.columns, size_t(e.columns) * sizeof(float));
  }
  chain.at = i;
}

void Drafter::write_logits(const Chain& chain, int32_t j, int32_t i, int32_t token, int32_t& path) {
  a_.logit_token[i] = token;
  a_.logit_slot[i] = chain.slot;
  a_.logit_target[i] = -1;
  a_.logit_out_index[i] = chain.out_index + 1 + j;
  if (path + int64_t(chain.path.size()) + 1 + j > a_.max_path)
    throw std::invalid_argument("drafts of more path tokens than a step has room for");
  a_.path_begin[i] = path;
  int32_t* end = std::copy(chain.path.begin(), chain.path.end(), a_.path + path);
  *end++ = std::max(chain.first, 0);
  const int32_t* own = drafts_.drafts + chain.seq * drafts_.max_drafts;
  end = std::transform(own, own + j, end, [](int32_t token) { return std::max(token, 0); });
  path = int32_t(end - a_.path);
}

void Drafter::read(int32_t j) {
  int64_t i = 0;
  for (Chain& chain : chains_) {
    if (j >= chain.n_drafts) continue;
    const StepArrays& own = program(j).arrays();
    const int32_t token = own.drawn[i];
    chain.newest = std::min(chain.newest, token) < 0 ? -1 : token;
    drafts_.drafts[chain.seq * drafts_.max_drafts + j] = chain.newest;
    target_.set_draft(chain.name, j, chain.newest);
    for (int64_t rank = 0; rank < drafts_.ranks; rank++) {
      const int32_t sibling = chain.newest < 0 ? -1 : own.siblings[i * own.n_siblings + rank];
      drafts_.siblings[(chain.seq * drafts_.ranks + rank) * drafts_.max_drafts + j] = sibling;
      target_.set_draft(chain.name, (rank + 1) * drafts_.max_drafts + j, sibling);
    }
    i++;
  }
}

}  // namespace kvasir
