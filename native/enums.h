// Enumerations whose names Python looks up.
#pragma once
#include <stdint.h>

namespace kvasir {

// An enumeration that counts from 0, its names in that order and how many they are. Python looks numbers up
// by name, so that each stands here alone.
constexpr int count_names(const char* names) {
  int n = 1;
  for (; *names; names++) n += *names == ',';
  return n;
}
#define KVASIR_ENUM(Name, ...)                         \
  enum class Name : int32_t { __VA_ARGS__ };           \
  constexpr const char* k##Name##Names = #__VA_ARGS__; \
  constexpr int k##Name##s = count_names(k##Name##Names)

}  // namespace kvasir
