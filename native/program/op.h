// All ops that records can name: to add one, write a struct in ops/ and enter it here. An op has a name,
// reads its record once when it is made, says how many items it has, and runs one.
#pragma once
#include <variant>

#include "program/ops/attention.h"
#include "program/ops/latent.h"
#include "program/ops/linear.h"
#include "program/ops/linear_scan.h"
#include "program/ops/moe.h"
#include "program/ops/places.h"
#include "program/ops/pool_rows.h"
#include "program/ops/products.h"
#include "program/ops/rows.h"
#include "program/ops/sample.h"
#include "program/ops/short_conv.h"
#include "program/ops/streams.h"
#include "program/ops/vocabularies.h"

namespace kvasir {

// A record's kind is the index here; Python looks it up by name.
using Op =
    std::variant<Embed, EmbedPositions, EmbedTypes, Norm, LayerNorm, Cast, Linear, RopeWrite, Attention, Add,
                 Scale, GateRows, GatherRows, Route, GroupPairs, ExpertLinear, Combine, Sample, PoolRows,
                 MulColumns, Weigh, WeighExperts, HeadNorm, RopeHeads, ShortConv, HeadLinear, LatentWrite,
                 LatentAttention, LinearScan, SquaredRelu, MergeEmbeds, AddEmbeds, Angles, Between, Spread,
                 EmbedIds, JoinColumns, RenameTokens, PlaceLogits, GatherColumns, SparseGate, TakeColumns,
                 MixStreams, CorrectStreams, AddToStreams, MatchRows, GatherPairs>;
constexpr int32_t kOps = std::variant_size_v<Op>;

const char* op_name(int32_t kind);

// Throws std::invalid_argument for a kind that is not there, and for ids that nothing has.
Op make_op(const Record& r, Workspace& w);

inline int64_t items(const Op& op, const Extent& e) {
  return std::visit([&](const auto& one) { return one.items(e); }, op);
}
inline void run_item(const Op& op, const Extent& e, int64_t item, int thread) {
  std::visit([&](const auto& one) { one.run(e, item, thread); }, op);
}

}  // namespace kvasir
