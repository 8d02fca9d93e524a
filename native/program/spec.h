// What a program is built from, and the arrays that its steps are read from.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace kvasir {

// Which symbol counts a record's rows.
KVASIR_ENUM(RowsOf, tokens, logits, pairs);

// One op, as exec/cpu/records.py writes it: fields that its kind does not read are 0. What each kind reads
// stands with its struct in ops/.
struct Record {
  int32_t kind, phase, rows_of, tail;  // kind: index in Op; tail: repeated for every tile of logit rows
  int32_t in[3], out[3];               // buffer ids, -1 absent
  int32_t weight[3];                   // weight ids, -1 absent
  int32_t column, epilogue, act;
  int32_t layer, n_heads, window, chunked, has_ends, leans, rotary_dim, neox, table, q_table, qk_norm;
  int32_t n_taps;
  int32_t gated, rule, state_dim, tiled, kept, kept_out;
  int32_t n_experts, top_k, normalize, per_pair;
  int32_t score, n_groups, top_groups, group_score;
  int32_t time_pairs, height_pairs, width_pairs, woven;
  float eps, scale, softcap, least, most;

  // read(name, field): all of them, by the names that Python has for them.
  template <class Read>
  void each(Read read) {
    read("kind", kind);
    read("phase", phase);
    read("rows_of", rows_of);
    read("tail", tail);
    read("ins", in);
    read("outs", out);
    read("weights", weight);
    read("column", column);
    read("epilogue", epilogue);
    read("act", act);
    read("layer", layer);
    read("n_heads", n_heads);
    read("window", window);
    read("chunked", chunked);
    read("has_ends", has_ends);
    read("leans", leans);
    read("rotary_dim", rotary_dim);
    read("neox", neox);
    read("table", table);
    read("q_table", q_table);
    read("qk_norm", qk_norm);
    read("n_taps", n_taps);
    read("gated", gated);
    read("rule", rule);
    read("state_dim", state_dim);
    read("tiled", tiled);
    read("kept", kept);
    read("kept_out", kept_out);
    read("n_experts", n_experts);
    read("top_k", top_k);
    read("normalize", normalize);
    read("per_pair", per_pair);
    read("score", score);
    read("n_groups", n_groups);
    read("top_groups", top_groups);
    read("group_score", group_score);
    read("time_pairs", time_pairs);
    read("height_pairs", height_pairs);
    read("width_pairs", width_pairs);
    read("woven", woven);
    read("eps", eps);
    read("scale", scale);
    read("softcap", softcap);
    read("least", least);
    read("most", most);
  }
};

struct Buffer {
  int64_t offset;                           // bytes into the arena
  int32_t dtype, columns, block, max_rows;  // DType

  template <class Read>
  void each(Read read) {
    read("offset", offset);
    read("dtype", dtype);
    read("columns", columns);
    read("block", block);
    read("max_rows", max_rows);
  }
};

// Where the KV memory has a layer: a KvLayer whose base is an offset. Without heads it is one with a state.
struct KvPlace {
  int64_t offset;                    // of block 0, from the start of the memory
  int64_t block_bytes, layer_bytes;  // of a block: all layers of the group, and this one
  int32_t block_size, n_kv_heads, head_dim, dtype;
  int64_t group;   // which of a step's tables finds its blocks
  int64_t latent;  // numbers of an entry that are its value; 0: keys and values

  template <class Read>
  void each(Read read) {
    read("offset", offset);
    read("block_bytes", block_bytes);
    read("layer_bytes", layer_bytes);
    read("block_size", block_size);
    read("n_kv_heads", n_kv_heads);
    read("head_dim", head_dim);
    read("dtype", dtype);
    read("group", group);
    read("latent", latent);
  }
};

struct Weight {
  const uint8_t* data;
  Layout layout;
  int64_t N, K, tiles;  // tiles per expert
};

// Of one step, as core/plan.py has it.
constexpr int32_t kMaxLogitRows = 1 << 20;

// What layers with a state know of drafts. The state of a sequence has taken in `at` tokens; of those that
// its last row drafted it takes in some first, up to where its row starts.
struct StepDrafts {
  int64_t most, slots, columns;  // drafted tokens of a row, 0: nobody drafts; floats that are kept of each
  const int32_t *at, *certain;   // [S] certain: tokens of the row that are not drafted
  const int32_t* slot;           // [S]
  const int32_t* taken;          // [S, most] which of its row's tokens the accepted ones were
  float* inputs;                 // [slots, most, columns]
};

// Arrays of one step, filled in place by the caller before run(). Sizes are the planned maxima.
struct StepArrays {
  // [T]; -1 - r - j * kMaxLogitRows: what logit row r of the previous step drew, or draft j behind it
  int32_t* tokens;
  int32_t *pos, *store, *seq, *parent;
  int32_t* types;           // [T] kinds of tokens; null where no record embeds them
  int32_t* ends;            // [T] where the positions end that a token sees; null where no record has_ends
  int32_t* rope_positions;  // [T, 3] by time, height and width; null where no record turns by them
  int32_t *seq_begin, *seq_start;
  uint8_t* seq_tree;
  int32_t* tables;  // [KV groups, max_seqs, max_blocks]; -1 where a window has left the block
  int64_t max_seqs, max_blocks;
  int32_t *logit_token, *logit_slot, *logit_target;  // [R] index in T, sampler slot, token to score or -1
  int64_t* logit_out_index;
  int32_t *path_begin, *path;  // [R + 1], tokens or references as in `tokens`
  int64_t max_path;
  // [R] whether the token behind was drafted from shares that the sampler keeps; null: of a program that
  // drafts
  const uint8_t* sampled;
  int32_t* siblings;  // [R, n_siblings] of a program that drafts: the next best, -1 where there is none
  int64_t n_siblings;
  int32_t* candidates;  // [R, n_candidates], the likeliest of each row; null: nobody asks
  int64_t n_candidates;
  StepDrafts drafts;
  double* sums;  // of a program that pools: [slots, columns], else null
  // results
  int32_t* drawn;
  float* logprob;
  int32_t* rank;
  uint64_t* hash;
  int32_t *top_count, *top_ids;  // [R], [R, max_top]
  float* top_logprobs;
  int64_t max_top;
};

struct ProgramSpec {
  std::vector<Record> records;
  std::vector<Buffer> buffers;
  std::vector<Weight> weights;
  std::vector<KvLayer> kv;
  std::vector<int32_t> kv_groups;    // per layer, which of the tables finds its blocks
  std::vector<const float*> tables;  // rope cos | sin
  int64_t max_tokens, max_logits, logits_tile, top_k;
  int64_t head_dim_max, group_max, draft_floats;  // draft_floats: of drafted tokens, in a thread's scratch
  bool hashes;
};

struct StepSize {
  int64_t tokens, seqs, logits;
};

}  // namespace kvasir
