// The CPU half of blocks on two devices: cold bits, failures, and the thread that is signalled
// through memory. Here a plain thread plays the other device.
#include "hybrid/exchange.h"

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

#include "hybrid/signal_waiter.h"
#include "tests/ffn_testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::int64_t kMaxTokens = 4;
constexpr std::chrono::seconds kLong{60};

/// Buffers as the other device shares them, with some layers and their flags.
struct TestExchange {
  FFNOptions options;
  Random random{3};
  std::int64_t words;
  SharedTeam team{3};
  std::vector<float> x;
  std::vector<std::uint32_t> cold;
  std::vector<float> y;
  std::vector<float> seen;  // by predictors
  std::int32_t status = 0;
  std::vector<std::uint32_t> flags;
  std::vector<std::unique_ptr<FFNBlock>> blocks;
  Exchange exchange;

  explicit TestExchange(const FFNOptions& o, std::int64_t num_layers = 1)
      : options(o),
        words((o.intermediate_size + 31) / 32 + 1),
        x(RandomFloats(kMaxTokens * o.hidden_size, random)),
        cold(static_cast<std::size_t>(kMaxTokens * words)),
        y(x.size(), 7.0F),
        seen(RandomFloats(kMaxTokens * o.hidden_size, random)),
        flags(static_cast<std::size_t>(2 * num_layers)),
        exchange(team, Buffers()) {
    for (std::uint32_t& word : cold) word = static_cast<std::uint32_t>(random.Bits());
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      blocks.push_back(std::make_unique<FFNBlock>(o, random));
      REQUIRE_MESSAGE(exchange.AddLayer(blocks.back()->view) == layer, "wrong number of a layer");
    }
  }

  ExchangeBuffers Buffers() {
    const std::int64_t hidden = options.hidden_size;
    return {{x.data(), kMaxTokens, hidden, hidden},
            {cold.data(), kMaxTokens, words, words},
            {y.data(), kMaxTokens, hidden, hidden},
            &status,
            {seen.data(), kMaxTokens, hidden, hidden}};
  }

  ExchangeFlags Flags() {
    const auto num_layers = static_cast<std::int64_t>(blocks.size());
    return {flags.data(), flags.data() + num_layers, num_layers};
  }

  bool IsCold(std::int64_t token, std::int64_t neuron) const {
    const auto word = static_cast<std::size_t>(token * words + neuron / 32);
    return (cold[word] >> (neuron % 32) & 1U) != 0U;
  }

  /// The rows of y that a layer gives, computed on lists made here.
  std::vector<float> Expected(std::int64_t layer, std::int64_t num_tokens, FFNStats* stats) {
    std::vector<std::int64_t> offsets = {0};
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t i = 0; i < options.intermediate_size; ++i) {
        if (IsCold(t, i)) ids.push_back(static_cast<std::int32_t>(i));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    FFNView view = blocks[static_cast<std::size_t>(layer)]->view;
    view.down_bias = nullptr;
    const std::int64_t hidden = options.hidden_size;
    std::vector<float> out(static_cast<std::size_t>(num_tokens * hidden));
    TestTeam own(1);
    RunListedFFN(own.context, {x.data(), num_tokens, hidden, hidden}, view,
                 {offsets.data(), ids.data(), num_tokens}, {out.data(), num_tokens, hidden, hidden},
                 stats);
    return out;
  }

  void CheckResult(const std::vector<float>& expected, const std::string& what) const {
    const std::vector<float> got(y.begin(), y.begin() + std::ssize(expected));
    REQUIRE_MESSAGE(SameBits(got, expected), options.Name(), ": ", what, " differs");
  }
};

/// The other device in memory-operation mode: one layer after the other, as a stream does.
class Device {
 public:
  explicit Device(TestExchange* t) : t_(t), flags_(t->Flags()) {}

  void Signal(std::int64_t layer) const {
    std::atomic_ref<std::uint32_t>(flags_.ready[layer]).store(1, std::memory_order_release);
  }
  void Wait(std::int64_t layer) const {
    const std::atomic_ref<std::uint32_t> done(flags_.done[layer]);
    while (done.load(std::memory_order_acquire) != 1U) std::this_thread::yield();
    done.store(0, std::memory_order_relaxed);
  }
  /// New input for every layer; the results.
  std::vector<std::vector<float>> Run(const std::vector<float>& inputs) const {
    std::vector<std::vector<float>> results;
    for (std::int64_t layer = 0; layer < flags_.num_layers; ++layer) {
      std::copy_n(inputs.begin() + layer * std::ssize(t_->x), t_->x.size(), t_->x.begin());
      Signal(layer);
      Wait(layer);
      results.push_back(t_->y);
    }
    return results;
  }

 private:
  TestExchange* t_;
  ExchangeFlags flags_;
};

std::vector<std::int64_t> AllLayers(const TestExchange& t) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < std::ssize(t.blocks); ++i) layers.push_back(i);
  return layers;
}

TEST_CASE("ExchangeRunsColdNeurons") {
  for (const ActivationKind kind : kKinds) {
    for (int bits = 0; bits < 8; ++bits) {
      FFNOptions o;
      o.kind = kind;
      o.is_gated = (bits & 1) != 0;
      o.is_transposed = (bits & 2) != 0;
      o.is_exact = (bits & 4) != 0;
      o.intermediate_size = 613;  // bits beyond the last neuron are set too
      TestExchange t(o, 2);
      for (const std::int64_t num_tokens : {1, 3, 4}) {
        for (const std::int64_t layer : {1, 0}) {
          FFNStats wanted;
          const std::vector<float> expected = t.Expected(layer, num_tokens, &wanted);
          t.exchange.Run(layer, num_tokens);
          t.CheckResult(expected, "a run");
          const FFNStats stats = t.exchange.TakeStats();
          REQUIRE_MESSAGE((stats.active == wanted.active && stats.predicted == wanted.predicted &&
                           stats.total == wanted.total && stats.bytes_read == wanted.bytes_read),
                          o.Name(), ": wrong counts");
          REQUIRE_MESSAGE(t.exchange.TakeStats().total == 0, "counts were not reset");
        }
      }
    }
  }
}

TEST_CASE("ExchangeWritesZerosWhereNothingIsCold") {
  for (const bool is_transposed : {false, true}) {
    FFNOptions o;
    o.is_transposed = is_transposed;
    TestExchange t(o);
    // First some tokens without cold neurons, then all.
    std::fill_n(t.cold.begin() + t.words, t.words, 0U);
    t.exchange.Run(0, 3);
    const auto is_zero = [](float value) { return value == 0.0F; };
    const auto row = t.y.begin() + o.hidden_size;
    REQUIRE_MESSAGE(std::all_of(row, row + o.hidden_size, is_zero), "a token without cold neurons");
    std::fill(t.cold.begin(), t.cold.end(), 0U);
    t.exchange.Run(0, kMaxTokens);
    REQUIRE_MESSAGE(std::all_of(t.y.begin(), t.y.end(), is_zero), "no cold neurons at all");
    REQUIRE_MESSAGE(t.exchange.TakeStats().total == (3 + kMaxTokens) * o.intermediate_size,
                    "wrong total");
  }
}

TEST_CASE("ExchangeAsksALayersPredictor") {
  FFNOptions o;
  TestExchange t(o);
  const TestMatrix scores(Format::kF32, o.intermediate_size, o.hidden_size, t.random);
  PredictorView predictor;
  predictor.num_stages = 1;
  predictor.stages[0].matrix = scores.view;
  const std::int64_t layer = t.exchange.AddLayer(t.blocks[0]->view, &predictor);
  FFNView unbiased = t.blocks[0]->view;
  unbiased.down_bias = nullptr;
  const std::int64_t hidden = o.hidden_size;
  for (const std::int64_t num_tokens : {1, 3, 4}) {
    std::vector<float> expected(static_cast<std::size_t>(num_tokens * hidden));
    FFNStats wanted;
    TestTeam own(1);
    RunPredictedFFN(own.context, {t.x.data(), num_tokens, hidden, hidden}, unbiased, predictor,
                    {t.seen.data(), num_tokens, hidden, hidden},
                    {expected.data(), num_tokens, hidden, hidden}, &wanted);
    t.exchange.Run(layer, num_tokens);
    t.CheckResult(expected, "a layer that predicts");
    const FFNStats stats = t.exchange.TakeStats();
    REQUIRE_MESSAGE((stats.predicted == wanted.predicted && stats.total == wanted.total &&
                     stats.predictor_bytes == wanted.predictor_bytes),
                    "wrong counts");
    REQUIRE_MESSAGE((stats.predicted > 0 && stats.predicted < stats.total), "all or none pass");
  }
  ExchangeBuffers blind = t.Buffers();
  blind.predictor_input = {};
  Exchange other(t.team, blind);
  REQUIRE_THROWS_AS_MESSAGE(other.AddLayer(t.blocks[0]->view, &predictor), std::invalid_argument,
                            "no input for predictors");
}

TEST_CASE("ExchangeRefusesWhatDoesNotFit") {
  FFNOptions o;
  TestExchange t(o);
  for (const std::int64_t layer : {-1, 1}) {
    REQUIRE_THROWS_AS_MESSAGE(t.exchange.Run(layer, 1), std::out_of_range, "a layer out of range");
  }
  for (const std::int64_t num_tokens : {std::int64_t{0}, kMaxTokens + 1}) {
    REQUIRE_THROWS_AS_MESSAGE(t.exchange.Argument(0, num_tokens), std::invalid_argument, "tokens");
  }
  o.intermediate_size += 64;
  const FFNBlock larger(o, t.random);
  REQUIRE_THROWS_AS_MESSAGE(t.exchange.AddLayer(larger.view), std::invalid_argument,
                            "more neurons");
  o.hidden_size += 4;
  const FFNBlock wider(o, t.random);
  REQUIRE_THROWS_AS_MESSAGE(t.exchange.AddLayer(wider.view), std::invalid_argument, "wider rows");
}

TEST_CASE("ExchangeEntryRunsOnAnyThread") {
  TestExchange t(FFNOptions{});
  const std::vector<float> expected = t.Expected(0, 2, nullptr);
  void* argument = t.exchange.Argument(0, 2);
  REQUIRE_MESSAGE(argument == t.exchange.Argument(0, 2), "arguments must be kept");
  REQUIRE_MESSAGE(argument != t.exchange.Argument(0, 1), "arguments must differ");
  std::thread([&] { Exchange::Enter(argument); }).join();
  t.CheckResult(expected, "the entry");
  REQUIRE_MESSAGE((t.status == 0 && !t.exchange.TakeFailure()), "a good run must not fail");
}

TEST_CASE("ExchangeKeepsTheTeamAwake") {
  TestExchange t(FFNOptions{});
  const std::vector<float> expected = t.Expected(0, 2, nullptr);
  for (const bool is_awake : {true, true, false, false, true}) {
    t.exchange.KeepAwake(is_awake);
    for (int i = 0; i < 3; ++i) {
      t.exchange.Run(0, 2);
      t.CheckResult(expected, "a team held awake");
      std::this_thread::sleep_for(std::chrono::milliseconds(i));
    }
  }
}

TEST_CASE("ExchangeReportsFailuresToTheDevice") {
  TestExchange t(FFNOptions{});
  t.exchange.RunGuarded(5, 2);
  t.exchange.ReportFailure(ExchangeStatus::kTimedOut, "a later one");
  REQUIRE_MESSAGE(t.status == static_cast<std::int32_t>(ExchangeStatus::kFailed), "wrong status");
  const auto end_of_two = t.y.begin() + 2 * t.options.hidden_size;
  REQUIRE_MESSAGE(std::count(t.y.begin(), end_of_two, 0.0F) == 2 * t.options.hidden_size,
                  "y is not zeroed");
  REQUIRE_MESSAGE(*end_of_two == 7.0F, "rows of no token were written");
  const std::string failure = t.exchange.TakeFailure().value_or("");
  REQUIRE_MESSAGE(failure.find("layer 5") != std::string::npos, "wrong message: ", failure);
  REQUIRE_MESSAGE((t.status == 0 && !t.exchange.TakeFailure()), "a failure is told once");
}

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
