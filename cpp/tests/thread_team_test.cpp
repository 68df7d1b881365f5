// The thread team: every chunk once, errors, shutdown, sleeping workers, forks.
#include "base/thread_team.h"

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/time_slice.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

/// Asserts nothing, so that any thread may call it.
bool RunsEveryChunkOnce(ThreadTeam& team, std::int64_t num_chunks) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_chunks));  // not atomic: TSan
  std::atomic<bool> is_in_range{true};
  team.ParallelFor(num_chunks, [&](std::int64_t chunk, std::int32_t thread) {
    if (thread < 0 || thread >= team.NumThreads()) is_in_range = false;
    ++counts[static_cast<std::size_t>(chunk)];
  });
  return is_in_range && std::all_of(counts.begin(), counts.end(), [](auto n) { return n == 1; });
}

TEST_CASE("ThreadTeamRunsEveryChunkOnce") {
  for (const std::int32_t threads : {1, 2, 3, 7}) {
    ThreadTeam team(threads);
    REQUIRE_MESSAGE(team.NumThreads() == threads, "wrong number of threads");
    for (const std::int64_t chunks : {0, 1, 2, 3, 8, 1000})
      REQUIRE(RunsEveryChunkOnce(team, chunks));
  }
}

TEST_CASE("ThreadTeamRunsManyShortRegions") {
  ThreadTeam team(4);
  std::int64_t sum = 0;
  std::vector<std::int64_t> parts(5);
  for (std::int64_t round = 0; round < 5000; ++round) {
    team.ParallelFor(5, [&](std::int64_t chunk, std::int32_t) {
      parts[static_cast<std::size_t>(chunk)] = round + chunk;
    });
    for (const std::int64_t part : parts) sum += part;
  }
  REQUIRE_MESSAGE(sum == 5 * (4999LL * 5000 / 2) + 5000 * 10,
                  "a region returned before its chunks ended");
}

TEST_CASE("ThreadTeamWakesSleepingWorkers") {
  ThreadTeam team(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // past the workers' spin time
    REQUIRE(RunsEveryChunkOnce(team, 50));
  }
}

TEST_CASE("ThreadTeamWorksWhileHeldAwake") {
  ThreadTeam team(3);
  for (int round = 0; round < 10; ++round) {
    team.HoldAwake();
    for (const std::int32_t gap_ms : {0, 1, 4}) {  // shorter and longer than it stays awake
      std::this_thread::sleep_for(std::chrono::milliseconds(gap_ms));
      REQUIRE(RunsEveryChunkOnce(team, 50));
    }
    team.LetSleep();
    REQUIRE(RunsEveryChunkOnce(team, 50));
  }
}

/// Two chunks that wait for each other end only if a worker really joins the region.
TEST_CASE("ThreadTeamRunsChunksAtTheSameTime") {
  ThreadTeam team(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    team.ParallelFor(2, [&](std::int64_t, std::int32_t) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 2));
  }
}

TEST_CASE("ThreadTeamSurvivesOversubscription") {
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&failures] {
      ThreadTeam team(8);
      for (int round = 0; round < 200; ++round) {
        if (!RunsEveryChunkOnce(team, 33)) ++failures;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  REQUIRE_MESSAGE(failures == 0, "a team failed beside others");
}

TEST_CASE("ThreadTeamPassesErrorsOn") {
  ThreadTeam team(3);
  for (int round = 0; round < 50; ++round) {
    std::string caught;
    try {
      team.ParallelFor(100, [](std::int64_t chunk, std::int32_t) {
        if (chunk % 10 == 7) throw std::runtime_error("chunk failed");
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    REQUIRE_MESSAGE(caught == "chunk failed", "the error of a chunk was lost");
    REQUIRE(RunsEveryChunkOnce(team, 20));
  }
}

TEST_CASE("ThreadTeamRefusesNestedRegions") {
  ThreadTeam team(2);
  bool was_refused = false;
  try {
    team.ParallelFor(2, [&](std::int64_t, std::int32_t) {
      team.ParallelFor(2, [](std::int64_t, std::int32_t) {});
    });
  } catch (const std::logic_error&) {
    was_refused = true;
  }
  REQUIRE_MESSAGE(was_refused, "a nested region must be an error");
  REQUIRE(RunsEveryChunkOnce(team, 20));
}

TEST_CASE("ThreadTeamRefusesBadSizes") {
  for (const std::int32_t threads : {-1, 0, kMaxThreads + 1}) {
    bool was_refused = false;
    try {
      ThreadTeam team(threads);
    } catch (const std::invalid_argument&) {
      was_refused = true;
    }
    REQUIRE_MESSAGE(was_refused, "team of ", threads, " threads");
  }
}

#if defined(__linux__)
/// Attributes of this thread; slices are 0 if the system reports none.
SchedulingAttributes SchedulingOfThisThread() {
  SchedulingAttributes attributes;
  if (!GetScheduling(&attributes)) attributes.runtime_ns = 0;
  return attributes;
}

TEST_CASE("ThreadTeamWorkersAskForShortSlices") {
  const SchedulingAttributes usual = SchedulingOfThisThread();
  SchedulingAttributes wanted;
  bool may_choose = false;
  std::thread([&] {
    may_choose = ::syscall(SYS_sched_setattr, 0, &usual, 0) == 0;
    UseShortSlices();
    wanted = SchedulingOfThisThread();
  }).join();
  ThreadTeam team(3);
  std::vector<SchedulingAttributes> found(3);
  std::atomic<int> arrived{0};
  team.ParallelFor(3, [&](std::int64_t, std::int32_t thread) {
    found[static_cast<std::size_t>(thread)] = SchedulingOfThisThread();
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
  });
  REQUIRE_MESSAGE(found[0].runtime_ns == usual.runtime_ns, "the caller is not the team's");
  for (const std::size_t worker : {1, 2}) {
    CHECK(found[worker].runtime_ns == wanted.runtime_ns);
    CHECK(found[worker].nice == usual.nice);
    CHECK(found[worker].policy == usual.policy);
  }
  if (may_choose && usual.runtime_ns > 100'000) CHECK(found[1].runtime_ns == 100'000);
}

using CpuMasks = std::vector<std::vector<std::int32_t>>;

std::vector<std::int32_t> CpusOfThisThread() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<std::int32_t> cpus;
  for (std::int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

/// CPUs of each member; every member takes one chunk, as none ends before all have begun.
CpuMasks CpusOfMembers(ThreadTeam& team) {
  CpuMasks masks(static_cast<std::size_t>(team.NumThreads()));
  std::atomic<std::int32_t> arrived{0};
  team.ParallelFor(team.NumThreads(), [&](std::int64_t, std::int32_t thread) {
    masks[static_cast<std::size_t>(thread)] = CpusOfThisThread();
    ++arrived;
    while (arrived.load() < team.NumThreads()) std::this_thread::yield();
  });
  return masks;
}

TEST_CASE("ThreadTeamPinsItsWorkers") {
  const std::vector<std::int32_t> all = CpusOfThisThread();
  const std::vector<std::int32_t> one = {all.back()};
  const CpuMasks everywhere = {all, all, all};
  const CpuMasks pinned = {all, one, one};  // the caller is not the team's
  ThreadTeam team(3);
  team.Unpin();
  team.PinCaller();
  REQUIRE_MESSAGE(CpusOfMembers(team) == everywhere, "pinned before it was asked");
  for (int round = 0; round < 2; ++round) {
    REQUIRE_MESSAGE(team.Pin(std::vector<std::int32_t>{all.front()}), "one CPU");
    REQUIRE_MESSAGE(team.Pin(one), "pinned again, elsewhere");
    REQUIRE_MESSAGE(CpusOfMembers(team) == pinned, "workers are not where they should be");
    REQUIRE(RunsEveryChunkOnce(team, 50));
    std::vector<std::int32_t> of_caller;
    std::thread([&] {
      team.PinCaller();
      of_caller = CpusOfThisThread();
    }).join();
    REQUIRE_MESSAGE(of_caller == one, "another caller was not pinned");
    team.Unpin();
    REQUIRE_MESSAGE(CpusOfMembers(team) == everywhere, "workers did not come back");
  }
}

TEST_CASE("ThreadTeamStaysWhereItIsIfItCannotBePinned") {
  const std::vector<std::int32_t> all = CpusOfThisThread();
  const CpuMasks everywhere = {all, all};
  ThreadTeam team(2);
  for (const std::vector<std::int32_t>& cpus :
       std::vector<std::vector<std::int32_t>>{{}, {-1}, {8191}, {1 << 20}}) {
    REQUIRE_MESSAGE(!team.Pin(cpus), "there are no such CPUs");
    REQUIRE_MESSAGE(CpusOfMembers(team) == everywhere, "workers were moved");
  }
}
#endif

// ThreadSanitizer does not follow a fork of a process with threads.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("ThreadTeamWorksInForkedChild") {
  ThreadTeam* team = new ThreadTeam(3);
  REQUIRE(RunsEveryChunkOnce(*team, 10));
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> num_run{0};
    team->ParallelFor(10, [&](std::int64_t, std::int32_t) { ++num_run; });
    const bool is_pinned = team->Pin(std::vector<std::int32_t>{0});  // there are no workers
    team->Unpin();
    delete team;
    ::_exit(num_run == 10 && !is_pinned ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  delete team;
  REQUIRE_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "the child's region failed");
}
#endif

}  // namespace
}  // namespace powerinfer::testing
