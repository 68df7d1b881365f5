// Pages of mapped files, which can be dropped and read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace powerinfer {

/// Where this process has files mapped that it cannot write to: dropping a page of them loses
/// nothing. Empty where the system does not say (Linux does).
class ReadOnlyFiles {
 public:
  /// Reads the state of now.
  ReadOnlyFiles();

  bool Contain(const void* data, std::size_t size) const;

 private:
  struct Piece {
    std::uintptr_t begin, end;
  };
  std::vector<Piece> pieces_;  // ascending, with gaps between them
};

/// Drops the pages that lie wholly inside [data, data + size), which are of ReadOnlyFiles.
void ReleasePages(const void* data, std::size_t size);

}  // namespace powerinfer
