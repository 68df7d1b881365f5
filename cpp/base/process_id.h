// Telling a forked child from the process that started threads.
#pragma once

#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace powerinfer {

/// The process that asks; 0 where processes cannot fork.
inline std::int64_t ProcessId() {
#if defined(__unix__) || defined(__APPLE__)
  return static_cast<std::int64_t>(::getpid());
#else
  return 0;
#endif
}

}  // namespace powerinfer
