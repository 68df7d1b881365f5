#include "base/page_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "base/rounding.h"

namespace powerinfer {
namespace {

// With regions of this size, one huge page in sixty-four is used only in part.
constexpr std::size_t kRegionBytes = std::size_t{128} << 20U;
constexpr std::size_t kAlignment = 64;

}  // namespace

PageMemory::PageMemory(std::size_t size, bool wants_huge_pages)
    : size_(std::max<std::size_t>(size, 1)) {
  void* address =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(address);
#if defined(MADV_HUGEPAGE)
  // If the system refuses, only speed is lost.
  if (wants_huge_pages) static_cast<void>(::madvise(data_, size_, MADV_HUGEPAGE));
#else
  static_cast<void>(wants_huge_pages);
#endif
}

PageMemory::~PageMemory() { ::munmap(data_, size_); }

ArenaBlock Arena::Allocate(std::size_t size) {
  const std::size_t needed = RoundUp(size, kAlignment);
  if (current_ == nullptr || current_->Size() - used_ < needed) {
    current_ = std::make_shared<PageMemory>(std::max(needed, kRegionBytes), true);
    used_ = 0;
  }
  ArenaBlock block{current_, current_->Data() + used_};
  used_ += needed;
  return block;
}

}  // namespace powerinfer
