// A team of threads with its scratch memory and kernels, for several callers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "base/thread_team.h"
#include "kernels/kernel_table.h"
#include "kernels/read_way.h"
#include "ops/op_context.h"
#include "ops/workspace.h"

namespace powerinfer {

/// Runs one operation at a time, whichever thread calls.
class SharedTeam {
 public:
  /// The table must outlive the team, as those of AvailableKernels do. Throws
  /// std::invalid_argument unless 1 <= num_threads <= kMaxThreads.
  explicit SharedTeam(std::int32_t num_threads,
                      const KernelTable& kernels = *AvailableKernels().front())
      : team_(num_threads), kernels_(kernels) {}

  std::int32_t NumThreads() const { return team_.NumThreads(); }

  const KernelTable& Kernels() const { return kernels_; }

  /// Sets how the kernels read weights of a kind, from the next operation on.
  void SetWay(ReadKind kind, const ReadWay& way) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ways_.of_kind[static_cast<std::size_t>(kind)] = way;
  }
  ReadWay Way(ReadKind kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ways_.of_kind[static_cast<std::size_t>(kind)];
  }

  /// Seconds spent in bodies so far.
  double BusySeconds() const {
    using Duration = std::chrono::steady_clock::duration;
    return std::chrono::duration<double>(Duration(busy_.load(std::memory_order_relaxed))).count();
  }

  /// Calls body(context) as soon as no other caller runs. Not reentrant.
  template <typename Body>
  void Run(const Body& body) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto start = std::chrono::steady_clock::now();
    body(OpContext{team_, workspace_, kernels_, RowKind::kDecode, ways_});
    busy_.fetch_add((std::chrono::steady_clock::now() - start).count(), std::memory_order_relaxed);
  }

  /// See ThreadTeam.
  void HoldAwake() {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_.HoldAwake();
  }
  void LetSleep() { team_.LetSleep(); }
  bool Pin(std::span<const std::int32_t> cpus) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return team_.Pin(cpus);
  }
  void Unpin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_.Unpin();
  }
  void PinCaller() {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_.PinCaller();
  }

 private:
  ThreadTeam team_;
  Workspace workspace_;
  const KernelTable& kernels_;
  ReadWays ways_;
  std::mutex mutex_;
  std::atomic<std::chrono::steady_clock::rep> busy_{0};
};

}  // namespace powerinfer
