#include "cpu/select.h"

#include <stdexcept>

#include "cpu/tiles.h"

namespace kvasir {
namespace {

// __builtin_cpu_supports also asks whether the operating system saves the registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi2");
}
bool has_avx2_vnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }

bool has_amx() { return has_avx512_vnni() && has_tiles(); }

constexpr Level kLevels[] = {{"scalar", [] { return true; }, fill_scalar},
                             {"avx2", has_avx2, fill_avx2},
                             {"avx2_vnni", has_avx2_vnni, fill_avx2_vnni},
                             {"avx2_vnni_emulated", has_avx2, fill_avx2_vnni_emulated, true},
                             {.name = "avx512", .runs = has_avx512, .fill = fill_avx512, .is_wide = true},
                             {"avx512_vnni", has_avx512_vnni, fill_avx512_vnni},
                             {"avx512_bf16", has_avx512_bf16, fill_avx512_bf16},
                             {.name = "amx", .runs = has_amx, .fill = fill_amx, .is_proven = false},
                             {"amx_emulated", has_avx512_vnni, fill_amx_emulated, true}};

// Levels may be left out of a build (CMakeLists.txt).
bool is_here(const Level& level) {
  if (!level.runs()) return false;
  Kernels kernels{};
  level.fill(kernels);
  return kernels.level != nullptr;
}

// Without integer linears or attention it was built as the base of a level above alone.
bool is_whole(const Kernels& k) {
  return k.linear[int(Form::usual)][int(Layout::q8)] != nullptr && k.attention != nullptr;
}

// Integer linears give the same bits on every level.
void keep_narrow(Kernels& k) {
  for (int layout = int(Layout::q8); layout < int(Layout::f8c); layout++)
    k.linear[int(Form::narrow)][layout] = k.linear[int(Form::usual)][layout];
}

// The kernels of `last` over those of the lower levels.
Kernels filled(const Level& last) {
  Kernels kernels{};
  for (const Level& level : kLevels) {
    const bool is_last = &level == &last;
    if (!is_here(level) || (level.is_emulated && !is_last)) continue;
    if (level.is_wide) keep_narrow(kernels);
    level.fill(kernels);
    if (is_last) break;
  }
  return kernels;
}

}  // namespace

std::span<const Level> all_levels() { return kLevels; }

std::vector<std::string> levels(bool emulated) {
  std::vector<std::string> names;
  for (const Level& level : kLevels)
    if (is_here(level) && (emulated || !level.is_emulated) && is_whole(filled(level)))
      names.push_back(level.name);
  return names;
}

Kernels kernels_for(const char* name) {
  for (const Level& level : kLevels)
    if (std::string(name) == level.name && is_here(level)) {
      const Kernels kernels = filled(level);
      if (is_whole(kernels)) return kernels;
    }
  std::string message = std::string("no ISA level \"") + name + "\" on this machine; it has";
  for (const std::string& level : levels()) message += " " + level;
  throw std::invalid_argument(message);
}

}  // namespace kvasir
