// What the kernel may do with memory: which nodes it lies on, and how large its pages are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

constexpr int kMaxNodes = 1024;

// Pages that the calling thread touches first from now on, and threads that it starts, take turns on these
// memory nodes; none: each lies near the CPU that touches it. Throws std::invalid_argument on a number out of
// range, std::system_error when the kernel refuses.
void interleave_new_pages(std::span<const int> nodes);

// The same for the whole pages inside [begin, begin + n), whoever touches them.
void interleave_pages(void* begin, size_t n, std::span<const int> nodes);

// Asks for huge pages in [begin, begin + n), or for none. False when the kernel does not know them there.
bool advise_huge_pages(const void* begin, size_t n, bool wanted);

// Gives every page in [begin, begin + n) its memory, as a first write would; what is there stays, also while
// others write. False when the kernel cannot (before 5.14), or has no memory.
bool populate_pages(const void* begin, size_t n);

}  // namespace kvasir
