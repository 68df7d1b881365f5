// How long the system lets a thread compute at a time while others wait.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace powerinfer {

#if defined(__linux__)

/// What sched_getattr and sched_setattr know of a thread; older C libraries do not declare it.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of ordinary threads: the slice, from Linux 6.12 on
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

/// Of the calling thread; whether it is known.
inline bool GetScheduling(SchedulingAttributes* attributes) {
  return ::syscall(SYS_sched_getattr, 0, attributes, sizeof(SchedulingAttributes), 0) == 0;
}

/// Asks for the shortest slices for the calling thread. Its share of the time stays the same, in
/// more and shorter turns, but woken it need not wait for the end of another's longer one. Systems
/// that know no slices, or do not let threads choose, ignore it.
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
