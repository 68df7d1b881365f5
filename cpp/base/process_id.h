// Distinguishes a forked child from the process that started the threads.
#pragma once

#include <cstdint>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace powerinfer {

/// The calling process; 0 if processes cannot fork.
inline std::int64_t ProcessId() {
#if defined(__unix__) || defined(__APPLE__)
  return static_cast<std::int64_t>(::getpid());
#else
  return 0;
#endif
}

}  // namespace powerinfer
