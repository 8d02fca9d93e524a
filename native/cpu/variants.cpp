#include "cpu/variants.h"

#include "program/share.h"

namespace kvasir {
namespace {

constexpr int kOne = row_class(1), kTwo = row_class(2), kEight = row_class(8), kSixteen = row_class(16),
              kMany = row_class(17), kLast = kRowClasses - 1;
constexpr int32_t kItems = int32_t(kItemsPerThread);

// {name, form, classes from, to, {rows of a block, tiles side by side, bytes ahead, rows of a panel}, items}
// clang-format off
constexpr Variant kVariants[] = {
    {"usual", Form::usual, kOne, kLast, {}, kItems},
    {"near", Form::usual, kOne, kEight, {.ahead = 1024}, kItems},
    {"far", Form::usual, kOne, kEight, {.ahead = 8192}, kItems},
    {"unasked", Form::usual, kOne, kEight, {.ahead = 0}, kItems},
    {"long items", Form::usual, kOne, kTwo, {}, 2},
    {"long items, unasked", Form::usual, kOne, kTwo, {.ahead = 0}, 2},
    {"pairs", Form::usual, kOne, kSixteen, {.tiles = 2}, kItems},
    {"singles", Form::usual, kTwo, kSixteen, {.tiles = 1}, kItems},
    {"fours", Form::usual, kEight, kSixteen, {.block = 4}, kItems},
    {"single fours", Form::usual, kEight, kSixteen, {.block = 4, .tiles = 1}, kItems},
    {"panel", Form::usual, kTwo, kEight, {.panel_rows = 1}, kItems},
    {"no panel", Form::usual, kSixteen, kMany, {.block = 8, .panel_rows = kNoPanel}, kItems},
    {"fours, no panel", Form::usual, kSixteen, kMany, {.block = 4, .panel_rows = kNoPanel}, kItems},
    {"few items", Form::usual, kMany, kLast, {}, 3},
    {"held", Form::held, kOne, kLast, {.ahead = 8192}, kItems},
    {"held, few items", Form::held, kTwo, kSixteen, {.ahead = 8192}, 3},
    {"narrow", Form::narrow, kOne, kLast, {}, kItems},
    {"narrow panel", Form::narrow, kTwo, kEight, {.panel_rows = 1}, kItems},
    {"narrow pairs", Form::narrow, kOne, kEight, {.tiles = 2}, kItems},
};
// clang-format on

// Whether it is another way than the usual one: kernels that always read panels have no shape, those of
// floats none.
bool differs(const Variant& v, Layout layout) {
  if (v.form != Form::usual || v.items != kItems) return true;
  const LinearShape& s = v.shape;
  if ((is_compact(layout) && !is_grouped(layout)) || is_scaled(layout)) return false;
  const bool has_panels = !is_float(layout);
  return s.ahead != LinearShape{}.ahead || s.tiles || s.block || (has_panels && s.panel_rows != kManyRows);
}

}  // namespace

std::span<const Variant> variants() { return kVariants; }

std::vector<int> variants_for(const Kernels& kernels, Layout layout, int row_class) {
  std::vector<int> found{0};
  for (int i = 1; i < int(std::size(kVariants)); i++) {
    const Variant& v = kVariants[i];
    if (row_class < v.first || row_class > v.last || !differs(v, layout)) continue;
    if (kernels.linear[int(v.form)][int(layout)]) found.push_back(i);
  }
  return found;
}

}  // namespace kvasir
