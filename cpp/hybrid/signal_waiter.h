// A thread that runs an exchange when another device signals it through memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "hybrid/exchange.h"

namespace powerinfer {

/// Words that both devices see, one per layer. The other device writes ready[layer] = 1 once input
/// and cold bits are there, waits for done[layer] == 1 and writes done[layer] = 0; the waiter waits
/// for ready, writes it 0, runs the layer and writes done.
struct ExchangeFlags {
  std::uint32_t* ready = nullptr;
  std::uint32_t* done = nullptr;
  std::int64_t num_layers = 0;
};

/// Between steps the thread sleeps; within a step it spins. It is started by the first step. In a
/// forked child there is none. One caller at a time.
class SignalWaiter {
 public:
  /// Exchange and flags must outlive the waiter. longest_wait: a step without a signal for this
  /// long is abandoned; time in which the process was stopped does not count.
  SignalWaiter(Exchange& exchange, const ExchangeFlags& flags,
               std::chrono::nanoseconds longest_wait);
  /// Abandons a running step and sets its done flags.
  ~SignalWaiter();
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

  /// Begins to wait for the signals of `layers`, one after the other. Call it before the other
  /// device starts. An abandoned step leaves done flags set, which the next step clears: let the
  /// other device finish before that. Throws std::logic_error while a step runs, std::runtime_error
  /// in a forked child or if no thread can be started, and as Exchange::Check.
  void StartStep(std::span<const std::int64_t> layers, std::int64_t num_tokens);

  /// Waits until every layer of the step has run, or the step was abandoned: then the exchange has
  /// a failure. Returns at once if no step runs. Throws std::runtime_error in a forked child.
  void FinishStep();

  /// Ends the step without waiting for further signals: the remaining layers do not run, their done
  /// flags are set, and the exchange forgets its failure. Returns once the thread is idle; a
  /// running layer is finished first. As after an abandoned step, let the other device finish
  /// before the next step. Throws std::runtime_error in a forked child.
  void AbortStep();

 private:
  void Main();
  void RunStep();
  void ServeLayers();
  void LeaveLayers();
  void ReportMissingSignal();
  bool AwaitSignal(std::int64_t layer) const;
  bool IsToldToEnd() const;
  void AwaitEnd();
  void CheckProcess() const;

  Exchange& exchange_;
  const ExchangeFlags flags_;
  const std::chrono::nanoseconds longest_wait_;
  const std::int64_t process_id_;
  std::thread thread_;

  // Owned by the waiter between the stores to `started_` and `finished_`.
  std::vector<std::int64_t> layers_;
  std::size_t num_served_ = 0;  // of layers_
  std::int64_t num_tokens_ = 0;
  bool leaves_flags_ = false;

  std::atomic<std::uint32_t> started_{0};   // steps begun
  std::atomic<std::uint32_t> finished_{0};  // steps ended
  std::atomic<std::uint32_t> aborted_{0};   // the last step to be aborted, counted from one
  std::atomic<bool> is_stopping_{false};
};

}  // namespace powerinfer
