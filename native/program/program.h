// A lowered program: flat fixed-size records over an arena, replayed by the pool. One call is one step.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"
#include "pool/pool.h"
#include "sample/sampler.h"

namespace kvasir {

constexpr int64_t kRowsPerItem = 8;   // row-wise ops
constexpr int64_t kLinearRows = 128;  // rows of one linear item: 128 x 1536 int8 stay in a 1 MB L2

constexpr int32_t kAttentionTokens = 32;  // query tokens of one attention item
// From here on twice as many, where few heads share K and V: prefill at 1,536 is 2 % faster, at 7,488 3 %; at
// 0 it would be 1 % slower (AMD Zen 5, two threads).
constexpr int32_t kLongContext = 1024;
constexpr int32_t kFewHeads = 3;
constexpr int64_t kItemTiles = 32;      // of one linear item, at most
constexpr int64_t kItemsPerThread = 6;  // items are cut so that a preempted thread delays little

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

enum class OpKind : int32_t {
  embed = 0,
  norm = 1,
  cast = 2,
  linear = 3,
  rope_write = 4,
  attention = 5,
  add = 6,
  scale = 7,
  gather_rows = 8,
  route = 9,
  group_pairs = 10,
  expert_linear = 11,
  combine = 12,
  sample = 13,
};

// Which symbol counts a record's rows.
enum class RowsOf : int32_t { tokens = 0, logits = 1, pairs = 2 };

// One op. Meaning of the fields by kind stands in exec/cpu/records.py, which writes them; sizes are checked
// there.
struct Record {
  int32_t kind, phase, rows_of, tail;  // tail: repeated for every tile of logit rows
  int32_t in[3], out[3];               // buffer ids, -1 absent
  int32_t weight[3];                   // weight ids, -1 absent
  int32_t i[10];
  float f[3];
};
static_assert(sizeof(Record) == 104);

struct Buffer {
  int64_t offset;  // bytes into the arena
  int32_t dtype;   // DType, 3 = int32
  int32_t columns, block;
  int32_t max_rows;
};
static_assert(sizeof(Buffer) == 24);

struct Weight {
  const uint8_t* data;
  Layout layout;
  int64_t N, K, tiles;  // tiles per expert
};

// Arrays of one step, filled in place by the caller before run(). Sizes are the planned maxima.
struct StepArrays {
  int32_t* tokens;  // [T]; -1 - r: what logit row r of the previous step drew
  int32_t *pos, *store, *seq, *parent;
  int32_t *seq_begin, *seq_start;
  uint8_t* seq_tree;
  int32_t* tables;  // [KV groups, max_seqs, max_blocks]; -1 where a window has left the page
  int64_t max_seqs, max_blocks;
  int32_t *logit_token, *logit_slot, *logit_target;  // [R] index in T, sampler slot, token to score or -1
  int64_t* logit_out_index;
  int32_t *path_begin, *path;  // [R + 1], tokens or references as in `tokens`
  int64_t max_path;
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
  std::vector<int32_t> kv_groups;    // per layer, which of the tables finds its pages
  std::vector<const float*> tables;  // rope cos | sin
  int64_t max_tokens, max_logits, logits_tile, top_k;
  int64_t head_dim_max, group_max;
  bool hashes;
};

struct StepSize {
  int64_t tokens, seqs, logits;
};

class Program {
 public:
  Program(Pool& pool, const Kernels& kernels, Sampler& sampler, ProgramSpec spec, uint8_t* arena,
          StepArrays arrays);
  // until: index of the last record to run, -1 for all. seconds: [phases] or null, time per phase. logits:
  // [R, vocab] or null.
  void run(StepSize size, int64_t until, double* seconds, float* logits);
  int64_t phases() const { return n_phases_; }

 private:
  struct Phase {
    int64_t begin, end;  // records
  };
  // Items [begin, end) of the `total` of a phase: the share i of n.
  struct ItemRange {
    int64_t begin, end, total;
    ItemRange(int64_t i, int64_t n, int64_t items)
        : begin(items * i / n), end(items * (i + 1) / n), total(items) {}
    // The share that an item is in.
    static ItemRange around(int64_t item, int64_t n, int64_t items) {
      return {((item + 1) * n - 1) / items, n, items};
    }
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
  // Query tokens of one sequence.
  struct Chunk {
    int32_t seq, t0, t1;
    int32_t length;    // positions that they see
    int32_t segments;  // that are items of their own; 0: all positions are one item
    int64_t split;     // index of the first token among those split
    int64_t work() const { return int64_t(t1 - t0) * length; }
  };
  // What one attention item computes, for one KV head.
  struct Part {
    int32_t chunk, segment;
  };
  // Logit rows that the tail records compute at a time.
  struct Tile {
    int64_t begin = 0, rows = 0;
  };

  static void enter(void* self, int thread);
  void replay(int thread);
  void run_phase(int64_t phase, const Tile& tile, int thread, Counter& counter, Ahead& ahead);
  void run_items(const Phase& phase, const Tile& tile, int thread, const ItemRange& items, Counter& counter,
                 Share& share);
  bool is_linear_of_few_rows(const Phase& phase, const Tile& tile) const;
  int64_t shares(const Phase& phase, const Tile& tile) const;
  void look_ahead(int64_t phase, const Tile& tile, int thread, Ahead& ahead) const;
  int64_t phase_items(const Phase& phase, const Tile& tile) const;
  void prepare(StepSize size);
  void resolve_references();
  void plan_scratch();
  void plan_maxima();
  void find_maxima(const LinearArgs& args, int64_t run);
  Maxima maxima_of(const Tile& tile, int64_t row) const;
  void plan_splits();
  int32_t most_attention_tokens() const;
  int32_t attention_tokens(int32_t position) const;
  void cut_attention();
  int64_t token_partial() const;
  int64_t rows(const Record& r, const Tile& tile) const;
  int64_t items(const Record& r, const Tile& tile) const;
  int64_t tiles_per_item(const Record& r, int64_t tiles, int64_t row_chunks) const;
  void run_item(const Record& r, const Tile& tile, int64_t item, int thread);
  void try_item(const Record& r, const Tile& tile, int64_t item, int thread);

  void embed(const Record& r, const Tile& tile, int64_t item);
  void norm(const Record& r, const Tile& tile, int64_t item);
  void cast(const Record& r, const Tile& tile, int64_t item);
  void linear(const Record& r, const Tile& tile, int64_t item, int thread);
  void rope_write(const Record& r, const Tile& tile, int64_t item);
  void attention(const Record& r, int64_t item, int thread);
  ComingKv coming_kv(const Record& r, int64_t item) const;
  bool attend_segment(const Chunk& chunk, int64_t segment, AttentionArgs args);
  void cast_item(const float* x, int64_t ldx, int32_t buffer, int64_t m0, int64_t m1, int64_t column);
  void add(const Record& r, const Tile& tile, int64_t item);
  void scale(const Record& r, const Tile& tile, int64_t item);
  void gather_rows(const Record& r, const Tile& tile, int64_t item);
  void route(const Record& r, const Tile& tile, int64_t item);
  void group_pairs(const Record& r);
  void expert_linear(const Record& r, int64_t item);
  void combine(const Record& r, const Tile& tile, int64_t item);
  void sample(const Record& r, const Tile& tile, int64_t item);

  Rows view(int32_t buffer) const;
  float* floats(int32_t buffer) const;
  int32_t* ints(int32_t buffer) const;
  const float* vector(int32_t weight) const;  // null where absent
  int64_t rows_per_item(const Record& r) const;
  void share(const Record& r, const Tile& tile, int64_t item, int64_t* m0, int64_t* m1) const;

  Pool& pool_;
  const Kernels kernels_;
  Sampler& sampler_;
  ProgramSpec spec_;
  uint8_t* arena_;
  StepArrays a_;
  std::vector<Phase> phases_;
  int64_t n_phases_ = 0, first_tail_ = 0;
  std::vector<Counter> counters_;
  int64_t output_at_ = 0;        // of a scratch: floats that an item computes before it casts them
  std::vector<float*> scratch_;  // per thread, owned by scratch_memory_
  std::vector<std::vector<float>> scratch_memory_;
  std::vector<int32_t> previous_;  // tokens drawn by the previous step
  std::vector<int32_t> paths_;     // paths with references resolved
  // The linear whose outputs are sampled as they are, if any: an item finds the largest logits of each row
  // while they are in a cache, [logits_tile, max_runs_] in all.
  const Record* head_ = nullptr;
  int64_t max_runs_ = 0;
  std::vector<RowMax> maxima_;
  std::vector<Chunk> chunks_;
  std::vector<Part> parts_;
  // split_: the largest context, and tokens whose segments may be items of their own
  int64_t kv_heads_max_ = 0, kv_heads_min_ = 0, split_segments_ = 0, split_tokens_ = 0;
  std::vector<float> partial_memory_;
  float* partial_ = nullptr;
  std::vector<std::atomic<int32_t>> split_done_;  // [split tokens, KV heads] segments computed
  // of the running step
  StepSize size_{};
  std::vector<StepRows> step_rows_;  // per KV group: they differ in the tables alone
  int64_t until_ = -1;
  double* seconds_ = nullptr;
  float* logits_out_ = nullptr;
  std::mutex failed_;
  std::exception_ptr failure_;  // the first of this step
};

}  // namespace kvasir
