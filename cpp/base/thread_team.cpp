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
// process loses next to nothing. Sleeping costs a futex wake of 12-50 us at the next region.
constexpr std::chrono::microseconds kSpinTime{50};
// The same while the team is held awake: longer than what another device does between two layers.
constexpr std::chrono::milliseconds kAwakeSpinTime{2};

// A seat holds the generation of the last region that its worker took part in or was locked out of,
// times four, plus what became of it.
constexpr std::uint32_t kGenerationOne = 4U;
constexpr std::uint32_t kInside = 1U;
constexpr std::uint32_t kOut = 2U;

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

// The life of a region: the caller sets body, num_chunks and next_chunk, then publishes a new
// generation. Chunk i is reserved for member i; the others are handed out by a counter. A worker
// that notices takes its seat, from "out of the last region" to "inside this one", runs its own
// chunk and then what the counter gives. The caller does the same, then locks the seats that nobody
// took, runs their chunks itself, and waits only for workers that are inside. So a worker that the
// system never scheduled meanwhile is not waited for, and taking part needs no word that all
// members write: each such write costs some 100 ns, one after the other.
struct ThreadTeam::State {
  struct alignas(128) Seat {  // processors fetch lines of 64 bytes in pairs
    std::atomic<std::uint32_t> word{kOut};
  };

  explicit State(std::int32_t size) : num_threads(size), seats(static_cast<std::size_t>(size)) {}

  const std::int32_t num_threads;
  std::int64_t process_id = 0;
  std::vector<Seat> seats;  // of member 0 unused
  std::vector<std::thread> workers;

  const std::function<void(std::int64_t, std::int32_t)>* body = nullptr;
  std::int64_t num_chunks = 0;
  std::exception_ptr error;
  bool is_running = false;

  std::optional<CpuSet> pinned;  // where the workers may run
  std::vector<CpuSet> unpinned;  // where each could before; empty while they still can

  alignas(128) WaitWord generation;  // of the last region begun
  alignas(128) std::atomic<std::int64_t> next_chunk{0};
  alignas(128) WaitWord departures;  // changes when a worker leaves while the caller waits for that
  std::atomic<bool> is_caller_waiting{false};
  std::atomic<bool> has_error{false};
  std::atomic<bool> is_stopping{false};
  std::atomic<std::int32_t> num_holds{0};

  std::atomic<std::uint32_t>& SeatOf(std::int32_t member) {
    return seats[static_cast<std::size_t>(member)].word;
  }
  bool TakeSeat(std::int32_t member, std::uint32_t now, std::uint32_t wanted);
  void RunChunk(std::int64_t chunk, std::int32_t thread);
  void RunChunks(std::int32_t thread);
  void Leave(std::int32_t member, std::uint32_t now);
  void WorkerMain(std::int32_t member);
  void LockSeats(std::uint32_t now);
  bool AreAllOut(std::uint32_t now);
  void AwaitWorkers(std::uint32_t now);
  bool PinWorkers(const CpuSet& cpus);
  void Start();
  void Stop();
};

/// Changes a seat from "out of the region before" to `wanted` (inside or out of this one); at most
/// one of worker and caller succeeds in a region.
bool ThreadTeam::State::TakeSeat(std::int32_t member, std::uint32_t now, std::uint32_t wanted) {
  std::uint32_t before = now - kGenerationOne + kOut;
  return SeatOf(member).compare_exchange_strong(before, now + wanted, std::memory_order_acq_rel,
                                                std::memory_order_acquire);
}

void ThreadTeam::State::RunChunk(std::int64_t chunk, std::int32_t thread) {
  if (chunk >= num_chunks || has_error.load(std::memory_order_relaxed)) return;
  try {
    (*body)(chunk, thread);
  } catch (...) {
    if (!has_error.exchange(true)) error = std::current_exception();  // the rest is not started
  }
}

/// Runs the member's own chunk, and others as long as there are any.
void ThreadTeam::State::RunChunks(std::int32_t thread) {
  RunChunk(thread, thread);
  // Read first: the counter is written by all.
  while (next_chunk.load(std::memory_order_relaxed) < num_chunks) {
    RunChunk(next_chunk.fetch_add(1, std::memory_order_relaxed), thread);
  }
}

void ThreadTeam::State::Leave(std::int32_t member, std::uint32_t now) {
  // Sequentially consistent: either this sees that the caller waits, or the caller the seat.
  SeatOf(member).store(now + kOut, std::memory_order_seq_cst);
  if (!is_caller_waiting.load(std::memory_order_seq_cst)) return;
  departures.value.fetch_add(1, std::memory_order_seq_cst);
  departures.WakeAll();
}

void ThreadTeam::State::WorkerMain(std::int32_t member) {
  UseShortSlices();
  std::uint32_t seen = 0;
  const auto has_news = [&] { return generation.value.load(std::memory_order_acquire) != seen; };
  for (;;) {
    const bool is_held = num_holds.load(std::memory_order_relaxed) > 0;
    if (!SpinUntil(has_news, is_held ? Clock::duration(kAwakeSpinTime) : kSpinTime)) {
      generation.SleepWhile(seen);
      continue;
    }
    seen = generation.value.load(std::memory_order_acquire);
    if (is_stopping.load(std::memory_order_acquire)) return;
    // Not if the region has ended meanwhile.
    if (!TakeSeat(member, seen, kInside)) continue;
    RunChunks(member);
    Leave(member, seen);
  }
}

/// Locks the seats that no worker took, and runs the chunks reserved for them.
void ThreadTeam::State::LockSeats(std::uint32_t now) {
  for (std::int32_t member = 1; member < num_threads; ++member) {
    if (TakeSeat(member, now, kOut)) RunChunk(member, 0);
  }
}

bool ThreadTeam::State::AreAllOut(std::uint32_t now) {
  return std::all_of(seats.begin() + 1, seats.end(), [&](const Seat& seat) {
    return seat.word.load(std::memory_order_seq_cst) == now + kOut;
  });
}

void ThreadTeam::State::AwaitWorkers(std::uint32_t now) {
  if (SpinUntil([&] { return AreAllOut(now); })) return;
  is_caller_waiting.store(true, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t departed = departures.value.load(std::memory_order_seq_cst);
    if (AreAllOut(now)) break;
    departures.SleepWhile(departed);
  }
  is_caller_waiting.store(false, std::memory_order_relaxed);
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

void ThreadTeam::State::Start() {
  try {
    for (std::int32_t i = 1; i < num_threads; ++i) {
      workers.emplace_back([this, i] { WorkerMain(i); });
    }
  } catch (...) {
    Stop();
    throw;
  }
}

/// Ends the workers that were started.
void ThreadTeam::State::Stop() {
  is_stopping.store(true, std::memory_order_seq_cst);
  generation.value.fetch_add(kGenerationOne, std::memory_order_seq_cst);
  generation.WakeAll();
  for (std::thread& worker : workers) worker.join();
}

ThreadTeam::ThreadTeam(std::int32_t num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads must be between 1 and 512, got " +
                                std::to_string(num_threads));
  }
  state_ = std::make_unique<State>(num_threads);
  state_->process_id = ProcessId();
  state_->Start();
}

ThreadTeam::~ThreadTeam() {
  if (ProcessId() != state_->process_id) {  // a forked child holds handles, but no threads
    for (std::thread& worker : state_->workers) worker.detach();
    return;
  }
  state_->Stop();
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
  state.next_chunk.store(state.num_threads, std::memory_order_relaxed);
  const std::uint32_t before = state.generation.value.load(std::memory_order_relaxed);
  const std::uint32_t now = before + kGenerationOne;
  state.generation.value.store(now, std::memory_order_seq_cst);
  state.generation.WakeAll();
  state.RunChunks(0);
  state.LockSeats(now);
  state.AwaitWorkers(now);
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
