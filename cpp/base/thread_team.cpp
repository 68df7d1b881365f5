#include "base/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpu_set.h"
#include "base/process_id.h"
#include "base/spin.h"
#include "base/time_slice.h"
#include "base/wait_word.h"

namespace powerinfer {
namespace {

using Clock = std::chrono::steady_clock;

// A worker that found no work spins this long before it sleeps: longer than the Python code between
// two operations of a decode step (5-20 us), far shorter than a scheduler's time slice, so another
// process loses next to nothing. Sleeping costs a futex wake of 5-50 us at the next region.
constexpr std::chrono::microseconds kSpinTime{50};
// The same while the team is held awake: longer than what another device does between two layers.
constexpr std::chrono::milliseconds kAwakeSpinTime{2};

// Bits of State::region. One word, so that "is a region open" and "I take part" are one step.
constexpr std::uint32_t kOpen = 1U;
constexpr std::uint32_t kJoinedOne = 2U;
constexpr std::uint32_t kJoinedMask = 0x7FEU;  // ten bits: the number of workers inside
constexpr std::uint32_t kGenerationOne = 0x800U;
constexpr std::uint32_t kGenerationMask = ~(kGenerationOne - 1U);
static_assert(kMaxThreads <= kJoinedMask / kJoinedOne);

/// Spins until `is_done` holds or `longest` has passed. Returns whether it holds.
template <typename Predicate>
bool SpinUntil(const Predicate& is_done, Clock::duration longest = kSpinTime) {
  const Clock::time_point deadline = Clock::now() + longest;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (is_done()) return true;
      Pause();
    }
  } while (Clock::now() < deadline);
  return is_done();
}

}  // namespace

// The life of a region: the caller sets body, num_chunks and next_chunk, then opens `region`.
// Workers that notice join (compare and swap: only while it is open), take chunks, leave. The
// caller takes chunks itself until none is left, closes, and waits only for workers that are
// inside. It does not wait for workers that the system has not scheduled meanwhile.
struct ThreadTeam::State {
  std::int32_t num_threads = 1;
  std::int64_t process_id = 0;
  std::vector<std::thread> workers;

  const std::function<void(std::int64_t, std::int32_t)>* body = nullptr;
  std::int64_t num_chunks = 0;
  std::exception_ptr error;
  bool is_running = false;

  std::optional<CpuSet> pinned;  // CPUs of the workers
  std::vector<CpuSet> unpinned;  // CPUs of each before; empty unless pinned

  alignas(64) WaitWord region;
  alignas(64) std::atomic<std::int64_t> next_chunk{0};
  alignas(64) WaitWord all_left;  // set by the last worker to leave
  std::atomic<bool> has_error{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<std::int32_t> num_holds{0};

  void TakeChunks(std::int32_t thread);
  bool Join(std::uint32_t* generation);
  void Leave();
  void WorkerMain(std::int32_t thread);
  void Open();
  void CloseAndWait();
  bool PinWorkers(const CpuSet& cpus);
};

void ThreadTeam::State::TakeChunks(std::int32_t thread) {
  try {
    for (;;) {
      const std::int64_t chunk = next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks) return;
      (*body)(chunk, thread);
    }
  } catch (...) {
    next_chunk.store(num_chunks, std::memory_order_relaxed);  // the rest is not started
    if (!has_error.exchange(true)) error = std::current_exception();
  }
}

/// Joins the open region unless it is the one of `generation`, which is updated.
bool ThreadTeam::State::Join(std::uint32_t* generation) {
  std::uint32_t word = region.value.load(std::memory_order_acquire);
  while ((word & kOpen) != 0U && (word & kGenerationMask) != *generation) {
    if (region.value.compare_exchange_weak(word, word + kJoinedOne, std::memory_order_acq_rel,
                                           std::memory_order_acquire)) {
      *generation = word & kGenerationMask;
      return true;
    }
  }
  return false;
}

void ThreadTeam::State::Leave() {
  const std::uint32_t before = region.value.fetch_sub(kJoinedOne, std::memory_order_acq_rel);
  const bool is_last = (before & kJoinedMask) == kJoinedOne;
  if (is_last && (before & kOpen) == 0U) {
    all_left.value.store(1, std::memory_order_seq_cst);
    all_left.WakeAll();
  }
}

void ThreadTeam::State::WorkerMain(std::int32_t thread) {
  UseShortSlices();
  std::uint32_t generation = 0;  // regions count from one
  for (;;) {
    if (Join(&generation)) {
      TakeChunks(thread);
      Leave();
      continue;
    }
    if (is_stopping.load(std::memory_order_acquire)) return;
    const auto has_news = [&] {
      const std::uint32_t now = region.value.load(std::memory_order_relaxed);
      return (now & kGenerationMask) != generation || is_stopping.load(std::memory_order_relaxed);
    };
    const bool is_held = num_holds.load(std::memory_order_relaxed) > 0;
    if (SpinUntil(has_news, is_held ? Clock::duration(kAwakeSpinTime) : kSpinTime)) {
      // A region that opened and closed while this worker was away is over: do not spin on it.
      const std::uint32_t now = region.value.load(std::memory_order_acquire);
      if ((now & kOpen) == 0U) generation = now & kGenerationMask;
      continue;
    }
    const std::uint32_t now = region.value.load(std::memory_order_acquire);
    if ((now & kGenerationMask) == generation && !is_stopping.load(std::memory_order_acquire)) {
      region.SleepWhile(now);
    }
  }
}

void ThreadTeam::State::Open() {
  all_left.value.store(0, std::memory_order_relaxed);
  std::uint32_t word = region.value.load(std::memory_order_relaxed);  // closed, nobody inside
  word = (word & kGenerationMask) + kGenerationOne;
  if ((word & kGenerationMask) == 0U) word += kGenerationOne;  // zero means "none joined yet"
  region.value.store(word | kOpen, std::memory_order_seq_cst);
  region.WakeAll();
}

void ThreadTeam::State::CloseAndWait() {
  const std::uint32_t before = region.value.fetch_and(~kOpen, std::memory_order_acq_rel);
  if ((before & kJoinedMask) == 0U) return;
  const auto are_all_gone = [&] { return all_left.value.load(std::memory_order_acquire) != 0U; };
  if (SpinUntil(are_all_gone)) return;
  while (!are_all_gone()) all_left.SleepWhile(0);
}

/// The first time, records the CPUs of each worker.
bool ThreadTeam::State::PinWorkers(const CpuSet& cpus) {
  if (unpinned.empty()) {
    for (std::thread& worker : workers) {
      const std::optional<CpuSet> before = CpusOf(worker.native_handle());
      if (!before) {
        unpinned.clear();
        return false;
      }
      unpinned.push_back(*before);
    }
  }
  return std::all_of(workers.begin(), workers.end(),
                     [&](std::thread& worker) { return SetCpusOf(worker.native_handle(), cpus); });
}

ThreadTeam::ThreadTeam(std::int32_t num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads must be between 1 and 512, got " +
                                std::to_string(num_threads));
  }
  state_->num_threads = num_threads;
  state_->process_id = ProcessId();
  for (std::int32_t i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), i] { state->WorkerMain(i); });
  }
}

ThreadTeam::~ThreadTeam() {
  if (ProcessId() != state_->process_id) {  // a forked child holds handles, but no threads
    for (std::thread& worker : state_->workers) worker.detach();
    return;
  }
  state_->is_stopping.store(true, std::memory_order_seq_cst);
  state_->region.value.fetch_add(kGenerationOne, std::memory_order_seq_cst);
  state_->region.WakeAll();
  for (std::thread& worker : state_->workers) worker.join();
}

std::int32_t ThreadTeam::NumThreads() const { return state_->num_threads; }

void ThreadTeam::ParallelFor(
    std::int64_t num_chunks,
    const std::function<void(std::int64_t chunk, std::int32_t thread)>& body) {
  if (num_chunks <= 0) return;
  State& state = *state_;
  if (state.is_running) throw std::logic_error("ThreadTeam::ParallelFor is not reentrant");
  if (state.num_threads == 1 || num_chunks == 1) {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
    return;
  }
  state.is_running = true;
  state.body = &body;
  state.num_chunks = num_chunks;
  state.next_chunk.store(0, std::memory_order_relaxed);
  state.Open();
  state.TakeChunks(0);
  state.CloseAndWait();
  state.is_running = false;
  if (state.has_error.exchange(false)) std::rethrow_exception(std::exchange(state.error, nullptr));
}

void ThreadTeam::HoldAwake() {
  state_->num_holds.fetch_add(1, std::memory_order_relaxed);
  try {
    ParallelFor(state_->num_threads, [](std::int64_t, std::int32_t) {});
  } catch (...) {
    LetSleep();
    throw;
  }
}

bool ThreadTeam::Pin(std::span<const std::int32_t> cpus) {
  State& state = *state_;
  const std::optional<CpuSet> wanted = MakeCpuSet(cpus);
  if (!wanted || ProcessId() != state.process_id) return false;
  if (!state.PinWorkers(*wanted)) {
    Unpin();
    return false;
  }
  state.pinned = wanted;
  return true;
}

void ThreadTeam::Unpin() {
  State& state = *state_;
  state.pinned.reset();
  if (ProcessId() != state.process_id) return;
  for (std::size_t i = 0; i < state.unpinned.size(); ++i) {
    SetCpusOf(state.workers[i].native_handle(), state.unpinned[i]);
  }
  state.unpinned.clear();
}

void ThreadTeam::PinCaller() const {
  if (state_->pinned) SetCpusOfCaller(*state_->pinned);
}

void ThreadTeam::LetSleep() { state_->num_holds.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace powerinfer
