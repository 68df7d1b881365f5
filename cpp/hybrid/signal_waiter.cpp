#include "hybrid/signal_waiter.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>

#include "base/process_id.h"
#include "base/spin.h"

namespace powerinfer {
namespace {

using Clock = std::chrono::steady_clock;

// Layers take some 100 us. A thread that waits this long yields its processor between looks, and
// after the second time looks only now and then: the other device is not in a step.
constexpr std::chrono::milliseconds kPoliteAfter{2};
constexpr std::chrono::milliseconds kDrowsyAfter{50};
constexpr std::chrono::microseconds kNap{50};
// Longest time between two reads of the clock that counts as waiting. More passes only while this
// thread does not run: its process was stopped, as the other device's driver was, or the machine
// slept.
constexpr std::chrono::milliseconds kLongestLook{5};

std::atomic_ref<std::uint32_t> Flag(std::uint32_t* flags, std::int64_t layer) {
  return std::atomic_ref<std::uint32_t>(flags[layer]);
}

/// Holds a team awake for the length of a block.
class AwakeTeam {
 public:
  explicit AwakeTeam(SharedTeam& team) : team_(team) { team_.HoldAwake(); }
  ~AwakeTeam() { team_.LetSleep(); }
  AwakeTeam(const AwakeTeam&) = delete;
  AwakeTeam& operator=(const AwakeTeam&) = delete;

 private:
  SharedTeam& team_;
};

}  // namespace

SignalWaiter::SignalWaiter(Exchange& exchange, const ExchangeFlags& flags,
                           std::chrono::nanoseconds longest_wait)
    : exchange_(exchange), flags_(flags), longest_wait_(longest_wait), process_id_(ProcessId()) {}

SignalWaiter::~SignalWaiter() {
  if (!thread_.joinable()) return;
  if (ProcessId() != process_id_) {
    thread_.detach();
    return;
  }
  is_stopping_.store(true, std::memory_order_release);
  const std::uint32_t num_steps = started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  thread_.join();
  // The thread may have stopped before it saw the last step.
  if (finished_.load(std::memory_order_acquire) != num_steps) LeaveLayers();
}

void SignalWaiter::CheckProcess() const {
  if (ProcessId() == process_id_) return;
  throw std::runtime_error("a forked process cannot take part in steps of another device");
}

void SignalWaiter::StartStep(std::span<const std::int64_t> layers, std::int64_t num_tokens) {
  CheckProcess();
  if (started_.load(std::memory_order_relaxed) != finished_.load(std::memory_order_acquire)) {
    throw std::logic_error("a step runs already; finish it before the next one");
  }
  for (const std::int64_t layer : layers) {
    exchange_.Check(layer, num_tokens);
    if (layer < flags_.num_layers) continue;
    throw std::out_of_range("layer " + std::to_string(layer) + " has no flags; there are " +
                            std::to_string(flags_.num_layers));
  }
  layers_.assign(layers.begin(), layers.end());
  num_tokens_ = num_tokens;
  num_served_ = 0;
  if (leaves_flags_) {
    for (std::int64_t layer = 0; layer < flags_.num_layers; ++layer) {
      Flag(flags_.ready, layer).store(0, std::memory_order_relaxed);
      Flag(flags_.done, layer).store(0, std::memory_order_release);
    }
    leaves_flags_ = false;
  }
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Main(); });
    } catch (const std::system_error& error) {
      throw std::runtime_error(std::string("no thread can be started for steps of two devices: ") +
                               error.what());
    }
  }
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
}

void SignalWaiter::FinishStep() {
  CheckProcess();
  AwaitEnd();
}

void SignalWaiter::AbortStep() {
  CheckProcess();
  aborted_.store(started_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  AwaitEnd();
  leaves_flags_ = true;  // those of layers served too, if the other device stopped before them
  exchange_.TakeFailure();
}

void SignalWaiter::AwaitEnd() {
  const std::uint32_t wanted = started_.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint32_t now = finished_.load(std::memory_order_acquire);
    if (now == wanted) return;
    finished_.wait(now, std::memory_order_acquire);
  }
}

void SignalWaiter::Main() {
  exchange_.Team().PinCaller();  // it computes as the workers do
  std::uint32_t ended = 0;
  for (;;) {
    started_.wait(ended, std::memory_order_acquire);
    if (started_.load(std::memory_order_acquire) == ended) continue;
    if (is_stopping_.load(std::memory_order_acquire)) return;
    RunStep();
    finished_.store(++ended, std::memory_order_release);
    finished_.notify_all();
  }
}

/// Whatever happens, the step ends: no one waits forever for this thread.
void SignalWaiter::RunStep() {
  try {
    ServeLayers();
  } catch (const std::exception& error) {
    exchange_.ReportFailure(ExchangeStatus::kFailed, error.what());
  } catch (...) {
    exchange_.ReportFailure(ExchangeStatus::kFailed, "an unknown error");
  }
  if (num_served_ < layers_.size()) LeaveLayers();
}

void SignalWaiter::ServeLayers() {
  const AwakeTeam awake(exchange_.Team());
  for (; num_served_ < layers_.size(); ++num_served_) {
    const std::int64_t layer = layers_[num_served_];
    if (IsToldToEnd()) return;
    if (!AwaitSignal(layer)) {
      if (!IsToldToEnd()) ReportMissingSignal();
      return;
    }
    Flag(flags_.ready, layer).store(0, std::memory_order_relaxed);
    exchange_.RunGuarded(layer, num_tokens_);
    Flag(flags_.done, layer).store(1, std::memory_order_release);
  }
}

/// Lets the other device pass all waits that are left of the step.
void SignalWaiter::LeaveLayers() {
  leaves_flags_ = true;
  for (std::size_t i = num_served_; i < layers_.size(); ++i) {
    Flag(flags_.done, layers_[i]).store(1, std::memory_order_release);
  }
}

void SignalWaiter::ReportMissingSignal() {
  char message[128];
  std::snprintf(message, sizeof(message),
                "no signal for layer %lld within %.3g s: the other device stopped or never began",
                static_cast<long long>(layers_[num_served_]),
                std::chrono::duration<double>(longest_wait_).count());
  exchange_.ReportFailure(ExchangeStatus::kTimedOut, message);
}

bool SignalWaiter::IsToldToEnd() const {
  // This step is the last one begun: there is no other before it has ended.
  return is_stopping_.load(std::memory_order_relaxed) ||
         aborted_.load(std::memory_order_relaxed) == finished_.load(std::memory_order_relaxed) + 1U;
}

bool SignalWaiter::AwaitSignal(std::int64_t layer) const {
  const auto ready = Flag(flags_.ready, layer);
  Clock::duration waited{0};
  Clock::time_point last = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (ready.load(std::memory_order_acquire) != 0U) return true;
      Pause();
    }
    const Clock::time_point now = Clock::now();
    waited += std::min<Clock::duration>(now - last, kLongestLook);
    last = now;
    if (waited >= longest_wait_ || IsToldToEnd()) return false;
    if (waited >= kDrowsyAfter) {
      std::this_thread::sleep_for(kNap);
    } else if (waited >= kPoliteAfter) {
      std::this_thread::yield();
    }
  }
}

}  // namespace powerinfer
