// The CPU half of blocks on two devices: cold bits, predictors, failures.
#include "hybrid/exchange.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/exchange_testing.h"

namespace powerinfer::testing {
namespace {

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
    REQUIRE_THROWS_AS_MESSAGE(t.exchange.Run(0, num_tokens), std::invalid_argument, "tokens");
  }
  o.intermediate_size += 64;
  const FFNBlock larger(o, t.random);
  REQUIRE_THROWS_AS_MESSAGE(t.exchange.AddLayer(larger.view), std::invalid_argument,
                            "more neurons");
  o.hidden_size += 4;
  const FFNBlock wider(o, t.random);
  REQUIRE_THROWS_AS_MESSAGE(t.exchange.AddLayer(wider.view), std::invalid_argument, "wider rows");
}

TEST_CASE("ExchangeRunsOnAnyThread") {
  TestExchange t(FFNOptions{});
  const std::vector<float> expected = t.Expected(0, 2, nullptr);
  std::thread([&] { t.exchange.RunGuarded(0, 2); }).join();
  t.CheckResult(expected, "a guarded run");
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

}  // namespace
}  // namespace powerinfer::testing
