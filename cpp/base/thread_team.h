// A persistent team of threads for short parallel regions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace powerinfer {

inline constexpr std::int32_t kMaxThreads = 512;

/// The calling thread is member 0. Workers spin briefly, then sleep (wait_word.h), so an
/// oversubscribed machine loses speed in proportion only; a region of two threads costs 0.7 us if
/// the worker is awake, 12 to 50 us if not. They request short slices (time_slice.h), so that a
/// region wakes them soon even if other threads are busy. Each member has a chunk of its own; the
/// others are handed out dynamically from an atomic counter, and chunks of members that did not
/// come in time are run by the caller, so a descheduled worker delays no more than the chunk that
/// it runs. Results must belong to chunks, never to threads (determinism). One caller at a time. In
/// a forked child there are no workers: regions run on the caller alone.
class ThreadTeam {
 public:
  /// Throws std::invalid_argument unless 1 <= num_threads <= kMaxThreads, std::system_error if the
  /// system refuses a thread.
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
  /// until LetSleep has been called as often. HoldAwake is a region.
  void HoldAwake();
  void LetSleep();

  /// Pins the workers to these CPUs, by the system's numbers. Member 0, the caller, is not
  /// affected. Returns whether that succeeded; if not (the system has no such CPU or call, this
  /// process may not use it, or is a forked child), nothing changes.
  bool Pin(std::span<const std::int32_t> cpus);

  /// Restores the CPUs that the workers had before the first Pin.
  void Unpin();

  /// Pins the calling thread to the CPUs of the workers; does nothing if they are not pinned.
  void PinCaller() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace powerinfer
