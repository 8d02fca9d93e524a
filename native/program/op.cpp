#include "program/op.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace kvasir {
namespace {

struct Entry {
  const char* name;
  Op (*make)(const Record&, Workspace&);
};

template <class T>
Op make(const Record& r, Workspace& w) {
  return T(r, w);
}

template <size_t... kIndex>
const Entry& entry(int32_t kind, std::index_sequence<kIndex...>) {
  static constexpr Entry kEntries[] = {
      {std::variant_alternative_t<kIndex, Op>::kName, make<std::variant_alternative_t<kIndex, Op>>}...};
  if (kind < 0 || kind >= kOps) throw std::invalid_argument("no op has the number " + std::to_string(kind));
  return kEntries[kind];
}

const Entry& entry(int32_t kind) { return entry(kind, std::make_index_sequence<kOps>()); }

}  // namespace

const char* op_name(int32_t kind) { return entry(kind).name; }

Op make_op(const Record& r, Workspace& w) { return entry(r.kind).make(r, w); }

}  // namespace kvasir
