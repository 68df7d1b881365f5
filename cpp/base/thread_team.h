// A persistent team of threads for short parallel regions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace powerinfer {

inline constexpr std::int32_t kMaxThreads = 512;

/// The calling thread is member 0. A region costs a few microseconds: workers spin briefly, then
/// sleep (wait_word.h), so an oversubscribed machine loses speed in proportion only. They ask for
/// short slices (time_slice.h), so that beside other busy threads a region soon wakes them.
/// Chunks are handed out dynamically from an atomic counter, so a descheduled worker delays no more
/// than its own chunk. Results must belong to chunks, never to threads (determinism).
/// One caller at a time. In a forked child there are no workers: regions run on the caller alone.
class ThreadTeam {
 public:
  /// Throws std::invalid_argument unless 1 <= num_threads <= kMaxThreads.
  explicit ThreadTeam(std::int32_t num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  std::int32_t NumThreads() const;

  /// Calls body(chunk, thread) for every chunk in [0, num_chunks), each exactly once; returns when
  /// all are done. `thread` in [0, NumThreads()) indexes per-thread scratch. Exceptions thrown by a
  /// body are rethrown here (the first one). Not reentrant.
  void ParallelFor(std::int64_t num_chunks,
                   const std::function<void(std::int64_t chunk, std::int32_t thread)>& body);

  /// Wakes the workers and keeps them from sleeping through gaps of up to 2 ms between regions,
  /// until LetSleep was called as often. HoldAwake is a region.
  void HoldAwake();
  void LetSleep();

  /// Lets the workers run on these CPUs only, by the system's numbers; member 0, whoever calls,
  /// runs where it did. Whether they do: if not (the system has no such CPU or call, this process
  /// may not use it, or is a forked child), they run where they did.
  bool Pin(std::span<const std::int32_t> cpus);

  /// Lets the workers run where they could before the first Pin.
  void Unpin();

  /// Lets the calling thread run where pinned workers do; nothing where they are not.
  void PinCaller() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace powerinfer
