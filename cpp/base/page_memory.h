// Anonymous memory straight from the operating system, committed page by page as it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace powerinfer {

/// Zero-filled pages, freed on destruction. Throws std::bad_alloc.
class PageMemory {
 public:
  /// wants_huge_pages: request transparent huge pages (fewer TLB misses when streaming weights, but
  /// memory is committed 2 MiB at a time).
  PageMemory(std::size_t size, bool wants_huge_pages);
  ~PageMemory();
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;

  std::uint8_t* Data() const { return data_; }
  std::size_t Size() const { return size_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A piece of an Arena. Keeps its memory alive.
struct ArenaBlock {
  std::shared_ptr<PageMemory> memory;
  std::uint8_t* data = nullptr;
};

/// Hands out consecutive pieces of large huge-page regions, so that many matrices share the last,
/// partly used huge page. Single pieces cannot be freed. Not thread-safe.
class Arena {
 public:
  /// `size` bytes aligned to 64.
  ArenaBlock Allocate(std::size_t size);

 private:
  std::shared_ptr<PageMemory> current_;
  std::size_t used_ = 0;
};

}  // namespace powerinfer
