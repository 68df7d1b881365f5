// CPU affinity of threads. Only Linux supports it; elsewhere nothing is known.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace powerinfer {

using ThreadHandle = std::thread::native_handle_type;

#if defined(__linux__)

/// One bit per CPU, by the system's numbers; large enough for any build of Linux.
using CpuSet = std::array<cpu_set_t, 8>;
inline constexpr std::int32_t kMaxCpus = CPU_SETSIZE * 8;

/// The set of these CPUs; none if the list is empty or holds a number that no CPU can have.
inline std::optional<CpuSet> MakeCpuSet(std::span<const std::int32_t> cpus) {
  CpuSet set = {};
  for (const std::int32_t cpu : cpus) {
    if (cpu < 0 || cpu >= kMaxCpus) return std::nullopt;
    CPU_SET(cpu % CPU_SETSIZE, &set[static_cast<std::size_t>(cpu / CPU_SETSIZE)]);
  }
  return cpus.empty() ? std::nullopt : std::optional(set);
}

inline std::optional<CpuSet> CpusOf(ThreadHandle thread) {
  CpuSet set = {};
  if (pthread_getaffinity_np(thread, sizeof(set), set.data()) != 0) return std::nullopt;
  return set;
}

/// Restricts the thread to these CPUs, as far as the process may use them. Returns whether that
/// succeeded.
inline bool SetCpusOf(ThreadHandle thread, const CpuSet& set) {
  return pthread_setaffinity_np(thread, sizeof(set), set.data()) == 0;
}

inline bool SetCpusOfCaller(const CpuSet& set) { return SetCpusOf(pthread_self(), set); }

#else

struct CpuSet {};

inline std::optional<CpuSet> MakeCpuSet(std::span<const std::int32_t>) { return std::nullopt; }
inline std::optional<CpuSet> CpusOf(ThreadHandle) { return std::nullopt; }
inline bool SetCpusOf(ThreadHandle, const CpuSet&) { return false; }
inline bool SetCpusOfCaller(const CpuSet&) { return false; }

#endif

}  // namespace powerinfer
