// Sleeping on a word: no wake-up is lost, and no thread yields instead of sleeping.
#include "base/wait_word.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/thread_team.h"
#include "tests/testing.h"

#if defined(__linux__)
namespace {
std::atomic<std::int64_t> num_yields{0};
}  // namespace

/// Replaces the C library's function in this program.
extern "C" int sched_yield() noexcept {
  ++num_yields;
  return static_cast<int>(::syscall(SYS_sched_yield));
}
#endif

namespace powerinfer::testing {
namespace {

void SleepUntil(WaitWord& word, std::uint32_t wanted) {
  for (std::uint32_t now = word.value; now != wanted; now = word.value) word.SleepWhile(now);
}

/// Hangs if one wake-up is lost: everybody sleeps until the next one's turn.
TEST_CASE("WaitWordLosesNoWakeUp") {
  constexpr std::uint32_t kThreads = 3;
  constexpr std::uint32_t kRounds = 2000;
  WaitWord turn;
  std::vector<std::uint32_t> order;  // not atomic: ThreadSanitizer
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&turn, &order, i] {
      for (std::uint32_t mine = i; mine < kThreads * kRounds; mine += kThreads) {
        SleepUntil(turn, mine);
        order.push_back(mine);
        turn.value.store(mine + 1, std::memory_order_seq_cst);
        turn.WakeAll();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(order.size() == kThreads * kRounds);
  for (std::uint32_t i = 0; i < order.size(); ++i) REQUIRE(order[i] == i);
}

TEST_CASE("WaitWordDoesNotSleepOnAnotherValue") {
  WaitWord word;
  word.value = 7;
  word.SleepWhile(6);
  REQUIRE(word.value == 7);
}

#if defined(__linux__)
TEST_CASE("ThreadTeamNeverYields") {
  ThreadTeam team(3);
  const std::int64_t before = num_yields;
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // past the workers' spin time
    team.ParallelFor(6, [](std::int64_t, std::int32_t thread) {
      // The caller waits for a worker, longer than it spins.
      if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  REQUIRE_MESSAGE(num_yields == before, "a thread of the team gave its turn away");
}
#endif

}  // namespace
}  // namespace powerinfer::testing
