#include "base/mapped_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "base/rounding.h"

namespace powerinfer {
namespace {

/// One line of /proc/self/maps: "begin-end rwxp offset device inode path".
struct Mapping {
  std::uintptr_t begin = 0, end = 0;
  bool is_read_only_file = false;

  explicit Mapping(const std::string& line) {
    std::istringstream fields(line);
    char dash = 0;
    std::string access, offset, device;
    std::uint64_t inode = 0;
    fields >> std::hex >> begin >> dash >> end >> access >> offset >> device >> std::dec >> inode;
    is_read_only_file = !fields.fail() && access.starts_with("r-") && inode != 0;
  }
};

}  // namespace

ReadOnlyFiles::ReadOnlyFiles() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const Mapping mapping(line);
    if (!mapping.is_read_only_file) continue;
    if (!pieces_.empty() && pieces_.back().end == mapping.begin) {
      pieces_.back().end = mapping.end;
    } else {
      pieces_.push_back({mapping.begin, mapping.end});
    }
  }
}

bool ReadOnlyFiles::Contain(const void* data, std::size_t size) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  return std::ranges::any_of(pieces_, [&](const Piece& piece) {
    return piece.begin <= begin && begin + size <= piece.end;
  });
}

void ReleasePages(const void* data, std::size_t size) {
#if defined(MADV_DONTNEED)
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = RoundUp(at, page);
  const std::uintptr_t end = (at + size) / page * page;
  // If the system refuses, only memory is lost.
  if (end <= begin) return;
  auto* bytes = static_cast<std::uint8_t*>(const_cast<void*>(data));  // madvise is not const
  static_cast<void>(::madvise(bytes + (begin - at), end - begin, MADV_DONTNEED));
#else
  static_cast<void>(data);
  static_cast<void>(size);
#endif
}

}  // namespace powerinfer
