// Pages of mapped files, which can be dropped and read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace powerinfer {

/// Addresses of files that this process has mapped read-only: dropping their pages loses nothing.
/// Empty if the system does not list them (Linux does).
class ReadOnlyFiles {
 public:
  /// Reads the current mappings.
  ReadOnlyFiles();

  bool Contain(const void* data, std::size_t size) const;

 private:
  struct Piece {
    std::uintptr_t begin, end;
  };
  std::vector<Piece> pieces_;  // ascending, with gaps between them
};

/// Drops the pages that lie wholly inside [data, data + size), a range within ReadOnlyFiles.
void ReleasePages(const void* data, std::size_t size);

}  // namespace powerinfer
