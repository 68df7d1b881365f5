// The thread that another device signals through memory: steps and their failures.
#include "hybrid/signal_waiter.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/exchange_testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::chrono::seconds kLong{60};

TEST_CASE("SignalWaiterRunsAHundredSteps") {
  FFNOptions o;
  constexpr std::int64_t kLayers = 3;
  TestExchange t(o, kLayers);
  const std::vector<float> inputs = RandomFloats(kLayers * std::ssize(t.x), t.random);
  std::vector<std::vector<float>> expected;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    std::copy_n(inputs.begin() + layer * std::ssize(t.x), t.x.size(), t.x.begin());
    expected.push_back(t.Expected(layer, kMaxTokens, nullptr));
  }
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  for (int step = 0; step < 100; ++step) {
    waiter.StartStep(AllLayers(t), kMaxTokens);
    std::vector<std::vector<float>> results;
    std::thread device([&] { results = Device(&t).Run(inputs); });
    device.join();
    waiter.FinishStep();
    REQUIRE_MESSAGE(!t.exchange.TakeFailure(), "a step failed");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      REQUIRE_MESSAGE(SameBits(results[i], expected[i]), "step ", step, " differs");
    }
    // Past the time that a waiter and workers stay awake, now and then.
    if (step % 25 == 24) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  REQUIRE_MESSAGE(std::count(t.flags.begin(), t.flags.end(), 0U) == 2 * kLayers,
                  "flags must end cleared");
}

TEST_CASE("SignalWaiterRunsSomeLayersOnly") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  waiter.FinishStep();  // none begun
  waiter.StartStep({}, 1);
  waiter.FinishStep();
  const std::array<std::int64_t, 2> layers = {2, 0};
  waiter.StartStep(layers, 1);
  REQUIRE_THROWS_AS_MESSAGE(waiter.StartStep(layers, 1), std::logic_error, "a step within a step");
  for (const std::int64_t layer : layers) {
    device.Signal(layer);
    device.Wait(layer);
  }
  waiter.FinishStep();
  const std::array<std::int64_t, 1> unknown = {3};
  REQUIRE_THROWS_AS_MESSAGE(waiter.StartStep(unknown, 1), std::out_of_range, "an unknown layer");
  REQUIRE_THROWS_AS_MESSAGE(waiter.StartStep(layers, 0), std::invalid_argument, "no tokens");
}

TEST_CASE("SignalWaiterSharesTheTeamWithOtherCallers") {
  TestExchange t(FFNOptions{}, 2);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over.load()) {
      t.team.Run([](const OpContext& context) {
        auto* counts = context.workspace.Get<std::int64_t>(Scratch::kCounts, 64);
        context.team.ParallelFor(64,
                                 [&](std::int64_t chunk, std::int32_t) { counts[chunk] = chunk; });
      });
      std::this_thread::yield();
    }
  });
  const std::vector<float> expected = t.Expected(1, 1, nullptr);
  for (int step = 0; step < 30; ++step) {
    waiter.StartStep(AllLayers(t), 1);
    for (const std::int64_t layer : AllLayers(t)) {
      device.Signal(layer);
      device.Wait(layer);
    }
    waiter.FinishStep();
    t.CheckResult(expected, "a shared team");
  }
  is_over.store(true);
  other.join();
}

TEST_CASE("SignalWaiterGivesUpWithoutASignal") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), std::chrono::milliseconds(30));
  for (int round = 0; round < 2; ++round) {
    waiter.StartStep(AllLayers(t), 1);
    device.Signal(0);
    for (std::int64_t layer = 0; layer < 3; ++layer) device.Wait(layer);  // nothing hangs
    waiter.FinishStep();
    REQUIRE_MESSAGE(t.status == static_cast<std::int32_t>(ExchangeStatus::kTimedOut),
                    "wrong status");
    const std::string failure = t.exchange.TakeFailure().value_or("");
    REQUIRE_MESSAGE(failure.find("layer 1") != std::string::npos, "wrong message: ", failure);
    // Flags that no thread waited for, or that came too late, do not spoil the next step.
    for (std::uint32_t& flag : t.flags) flag = 1;
  }
  waiter.StartStep(AllLayers(t), 1);
  const std::vector<float> expected = t.Expected(2, 1, nullptr);
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    device.Signal(layer);
    device.Wait(layer);
  }
  waiter.FinishStep();
  t.CheckResult(expected, "the step after a failure");
  REQUIRE_MESSAGE(!t.exchange.TakeFailure(), "the step after a failure failed");
}

/// A whole step by one thread, with results to compare.
void CheckStep(TestExchange* t, SignalWaiter* waiter) {
  const Device device(t);
  const std::vector<std::int64_t> layers = AllLayers(*t);
  const std::vector<float> expected = t->Expected(layers.back(), 1, nullptr);
  // Nothing may run before its signal, on the input of that moment.
  const std::vector<float> x = t->x;
  std::fill(t->x.begin(), t->x.end(), 0.0F);
  waiter->StartStep(layers, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::copy(x.begin(), x.end(), t->x.begin());
  for (const std::int64_t layer : layers) {
    device.Signal(layer);
    device.Wait(layer);
  }
  waiter->FinishStep();
  t->CheckResult(expected, "a step after one that failed");
  REQUIRE_MESSAGE((t->status == 0 && !t->exchange.TakeFailure()), "a good step failed");
}

TEST_CASE("SignalWaiterAbortsAStepAtOnce") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  waiter.AbortStep();  // none begun
  const auto start = std::chrono::steady_clock::now();
  for (int num_signalled = 0; num_signalled <= 3; ++num_signalled) {
    for (const int delay_ms : {0, 3, 60}) {  // the thread spins, is polite, naps
      waiter.StartStep(AllLayers(t), 1);
      for (int layer = 0; layer < num_signalled; ++layer) {
        device.Signal(layer);
        if (layer + 1 < num_signalled) device.Wait(layer);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      waiter.AbortStep();
      const int first = std::max(0, num_signalled - 1);
      for (int layer = first; layer < 3; ++layer) device.Wait(layer);  // queued layers go on
      waiter.FinishStep();
      waiter.AbortStep();
      REQUIRE_MESSAGE((t.status == 0 && !t.exchange.TakeFailure()), "an abort is no failure");
      // Signals that come too late, and flags that were not reset.
      for (std::uint32_t& flag : t.flags) flag = 1;
      CheckStep(&t, &waiter);
    }
  }
  const auto passed = std::chrono::steady_clock::now() - start;
  REQUIRE_MESSAGE(passed < kLong / 2, "a step was waited for");
}

TEST_CASE("SignalWaiterAbortsAmidstTheDevice") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  for (int round = 0; round < 100; ++round) {
    waiter.StartStep(AllLayers(t), 1);
    std::thread other([&] {
      for (const std::int64_t layer : AllLayers(t)) {
        device.Signal(layer);
        device.Wait(layer);
      }
    });
    for (int i = 0; i < round; ++i) std::this_thread::yield();
    waiter.AbortStep();
    other.join();
    if (round % 10 == 9) CheckStep(&t, &waiter);
  }
}

TEST_CASE("SignalWaiterForgetsFailuresOfAnAbortedStep") {
  TestExchange t(FFNOptions{}, 2);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), std::chrono::milliseconds(20));
  waiter.StartStep(AllLayers(t), 1);
  device.Wait(1);  // given up
  waiter.AbortStep();
  REQUIRE_MESSAGE((t.status == 0 && !t.exchange.TakeFailure()), "the failure was kept");
}

/// A region that stays open until it is destroyed and bypasses the lock of the shared team: any
/// later call on the team is refused.
class OpenRegion {
 public:
  explicit OpenRegion(SharedTeam* shared) {
    ThreadTeam* team = nullptr;
    shared->Run([&](const OpContext& context) { team = &context.team; });
    caller_ = std::thread([this, team] {
      team->ParallelFor(2, [this](std::int64_t, std::int32_t) {
        is_open_ = true;
        while (!is_over_.load()) std::this_thread::yield();
      });
    });
    while (!is_open_.load()) std::this_thread::yield();
  }
  ~OpenRegion() {
    is_over_ = true;
    caller_.join();
  }
  OpenRegion(const OpenRegion&) = delete;
  OpenRegion& operator=(const OpenRegion&) = delete;

 private:
  std::atomic<bool> is_open_{false};
  std::atomic<bool> is_over_{false};
  std::thread caller_;
};

TEST_CASE("SignalWaiterEndsAStepWhoseThreadFails") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  SignalWaiter waiter(t.exchange, t.Flags(), kLong);
  {
    const OpenRegion region(&t.team);
    waiter.StartStep(AllLayers(t), 1);
    for (std::int64_t layer = 0; layer < 3; ++layer) device.Wait(layer);  // nothing hangs
    waiter.FinishStep();
    REQUIRE_MESSAGE(t.status == static_cast<std::int32_t>(ExchangeStatus::kFailed), "wrong status");
    const std::string failure = t.exchange.TakeFailure().value_or("");
    REQUIRE_MESSAGE(failure.find("reentrant") != std::string::npos, "wrong message: ", failure);
  }
  CheckStep(&t, &waiter);
}

TEST_CASE("SignalWaiterLeavesAStepWhenDestroyed") {
  TestExchange t(FFNOptions{}, 3);
  const Device device(&t);
  std::thread waiting;
  {
    SignalWaiter waiter(t.exchange, t.Flags(), kLong);
    waiter.StartStep(AllLayers(t), 1);
    waiting = std::thread([&] {
      device.Signal(0);
      for (std::int64_t layer = 0; layer < 3; ++layer) device.Wait(layer);
    });
  }
  waiting.join();
  const SignalWaiter idle(t.exchange, t.Flags(), kLong);  // one that never had a thread
}

// ThreadSanitizer does not follow a fork of a process with threads.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("SignalWaiterIsAbsentInAForkedChild") {
  TestExchange t(FFNOptions{});
  auto waiter = std::make_unique<SignalWaiter>(t.exchange, t.Flags(), kLong);
  waiter->StartStep(AllLayers(t), 1);
  const pid_t child = ::fork();
  if (child == 0) {
    int refused = 0;
    try {
      waiter->FinishStep();
    } catch (const std::runtime_error&) {
      ++refused;
    }
    waiter.reset();
    ::_exit(refused == 1 ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  REQUIRE_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "the child took part in a step");
  Device(&t).Signal(0);
  Device(&t).Wait(0);
  waiter->FinishStep();
  REQUIRE_MESSAGE(!t.exchange.TakeFailure(), "the parent's step failed");
}
#endif

}  // namespace
}  // namespace powerinfer::testing
