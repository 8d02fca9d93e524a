#include "cpu/tiles.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvasir {
namespace {

constexpr unsigned kSaveBit = 1u << 27;                       // CPUID 1, ecx: xgetbv may be used
constexpr unsigned kTileBit = 1u << 24, kInt8Bit = 1u << 25;  // CPUID 7, edx
constexpr unsigned kConfigState = 17, kDataState = 18;        // components of the saved state (XCR0)
constexpr long kRequest = 0x1023;                             // ARCH_REQ_XCOMP_PERM

bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kSaveBit)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTileBit) && (d & kInt8Bit);
}

// The operating system saves the tile registers.
bool has_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kBoth = 1u << kConfigState | 1u << kDataState;
  return (low & kBoth) == kBoth;
}

// For all threads, also those that run already. Refused where a thread has too small a stack for signals.
bool is_permitted() { return syscall(SYS_arch_prctl, kRequest, kDataState) == 0; }

}  // namespace

bool has_tiles() { return has_instructions() && has_state() && is_permitted(); }

}  // namespace kvasir
