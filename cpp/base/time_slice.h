// Time slices of threads: how long one computes while others wait.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace powerinfer {

#if defined(__linux__)

/// The argument of sched_getattr and sched_setattr, which older C libraries do not declare.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // the slice of ordinary threads, from Linux 6.12 on
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

/// Reads the attributes of the calling thread. Returns whether the system knows them.
inline bool GetScheduling(SchedulingAttributes* attributes) {
  return ::syscall(SYS_sched_getattr, 0, attributes, sizeof(SchedulingAttributes), 0) == 0;
}

/// Requests the shortest slices for the calling thread. Its share of the time stays the same, in
/// more and shorter turns, but once woken it need not wait for the end of another thread's longer
/// slice. Without effect on systems that have no slices or do not let threads choose them.
inline void UseShortSlices() {
  constexpr std::uint64_t kShortestNs = 100'000;
  SchedulingAttributes attributes;
  if (!GetScheduling(&attributes) || attributes.policy != SCHED_OTHER) return;
  attributes.runtime_ns = kShortestNs;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

#else

inline void UseShortSlices() {}

#endif

}  // namespace powerinfer
