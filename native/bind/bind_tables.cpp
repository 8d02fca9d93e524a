// The numbers and structs that Python and the core must agree on: Python has no copy, it looks them up here
// by name (exec/cpu/codes.py, exec/masks.py).
#include <nanobind/nanobind.h>

#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include "bind/bind.h"
#include "program/op.h"
#include "program/spec.h"
#include "sample/masks.h"

namespace nb = nanobind;

namespace kvasir {
namespace {

// names: of a KVASIR_ENUM, "a, b, c".
nb::dict enumeration(std::string_view names) {
  nb::dict found;
  for (int n = 0; !names.empty(); n++) {
    const size_t end = names.find(',');
    const std::string_view name = names.substr(0, end);
    found[nb::str(name.data(), name.size())] = n;
    names.remove_prefix(end == names.npos ? names.size() : end + 2);
  }
  return found;
}

nb::dict op_kinds() {
  nb::dict found;
  for (int32_t kind = 0; kind < kOps; kind++) found[op_name(kind)] = kind;
  return found;
}

// Bytes of an element and of a head's scale.
nb::dict kv_type_sizes() {
  nb::dict found;
  for (auto [name, code] : enumeration(kKvTypeNames)) {
    const KvTypeSize& size = kKvTypeSizes[nb::cast<int>(code)];
    found[name] = nb::make_tuple(size.element, size.scale);
  }
  return found;
}

template <class Field>
std::string format_of() {
  using Item = std::remove_all_extents_t<Field>;
  std::string shape;
  if constexpr (std::is_array_v<Field>)
    shape.append("(").append(std::to_string(std::extent_v<Field>)).append(",)");
  return shape.append(std::is_floating_point_v<Item> ? "<f" : "<i").append(std::to_string(sizeof(Item)));
}

// What numpy.dtype makes a structured type of.
template <class T>
nb::dict fields_of() {
  nb::list names, formats, offsets;
  T one{};
  one.each([&]<class Field>(const char* name, Field& field) {
    names.append(name);
    formats.append(format_of<Field>().c_str());
    offsets.append(reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&one));
  });
  nb::dict found;
  found["names"] = names;
  found["formats"] = formats;
  found["offsets"] = offsets;
  found["itemsize"] = sizeof(T);
  return found;
}

}  // namespace

void bind_tables(nb::module_& m) {
  nb::dict enums, structs;
  enums["Act"] = enumeration(kActNames);
  enums["DType"] = enumeration(kDTypeNames);
  enums["Epilogue"] = enumeration(kEpilogueNames);
  enums["FillState"] = enumeration(kFillStateNames);
  enums["GroupScore"] = enumeration(kGroupScoreNames);
  enums["KvType"] = enumeration(kKvTypeNames);
  enums["QkNorm"] = enumeration(kQkNormNames);
  enums["Layout"] = enumeration(kLayoutNames);
  enums["MaskFlag"] = enumeration(kMaskFlagNames);
  enums["Op"] = op_kinds();
  enums["RowsOf"] = enumeration(kRowsOfNames);
  enums["ScanRule"] = enumeration(kScanRuleNames);
  enums["Score"] = enumeration(kScoreNames);
  structs["Record"] = fields_of<Record>();
  structs["Buffer"] = fields_of<Buffer>();
  structs["KvPlace"] = fields_of<KvPlace>();
  m.attr("ENUMS") = enums;
  m.attr("STRUCTS") = structs;
  m.attr("KV_TYPE_SIZES") = kv_type_sizes();
  m.attr("LAYOUT_VERSION") = kLayoutVersion;
  m.attr("MAX_EXPERTS") = kMaxExperts;
  m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
  m.attr("MAX_LATENT_DIM") = kMaxLatentDim;
}

}  // namespace kvasir
