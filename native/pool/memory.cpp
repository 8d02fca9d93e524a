#include "pool/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace kvasir {
namespace {

// linux/mempolicy.h, spelled out so that no header of libnuma is needed.
constexpr int kDefault = 0, kInterleave = 3;
constexpr size_t kWordBits = CHAR_BIT * sizeof(unsigned long);

struct Policy {
  int mode;
  std::array<unsigned long, kMaxNodes / kWordBits> mask{};

  explicit Policy(std::span<const int> nodes) : mode(nodes.empty() ? kDefault : kInterleave) {
    for (const int node : nodes) {
      if (node < 0 || node >= kMaxNodes)
        throw std::invalid_argument("memory node " + std::to_string(node) + " is not in 0 to 1023");
      mask[size_t(node) / kWordBits] |= 1ul << (size_t(node) % kWordBits);
    }
  }
  const unsigned long* bits() const { return mode == kDefault ? nullptr : mask.data(); }
  // The kernel reads one bit less than it is told.
  unsigned long n_bits() const { return mode == kDefault ? 0 : kMaxNodes + 1; }
};

void check(long code, const char* what) {
  if (code != 0) throw std::system_error(errno, std::generic_category(), what);
}

// The whole pages inside a range.
struct Pages {
  uintptr_t begin;
  size_t n = 0;

  Pages(const void* start, size_t size) {
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(start);
    begin = (address + page - 1) / page * page;
    const uintptr_t end = (address + size) / page * page;
    if (end > begin) n = end - begin;
  }
};

}  // namespace

void interleave_new_pages(std::span<const int> nodes) {
  const Policy policy(nodes);
  check(syscall(SYS_set_mempolicy, policy.mode, policy.bits(), policy.n_bits()),
        "cannot spread new memory over the nodes");
}

void interleave_pages(void* begin, size_t n, std::span<const int> nodes) {
  const Policy policy(nodes);
  const Pages pages(begin, n);
  if (pages.n == 0) return;
  check(syscall(SYS_mbind, pages.begin, pages.n, policy.mode, policy.bits(), policy.n_bits(), 0),
        "cannot spread memory over the nodes");
}

bool advise_huge_pages(const void* begin, size_t n, bool wanted) {
  const Pages pages(begin, n);
  if (pages.n == 0) return true;
  return madvise(reinterpret_cast<void*>(pages.begin), pages.n, wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) ==
         0;
}

bool populate_pages(const void* begin, size_t n) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, newer than the headers of older systems
  const Pages pages(begin, n);
  return pages.n == 0 || madvise(reinterpret_cast<void*>(pages.begin), pages.n, kPopulateWrite) == 0;
}

}  // namespace kvasir
