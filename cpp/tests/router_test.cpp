// Routers against double precision; ties, NaN, and tokens that do not depend on others.
#include "sparse/router.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/experts_testing.h"

namespace powerinfer::testing {
namespace {

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;

  Routed(const OpContext& context, RowsView<const float> x, const RouterView& router)
      : ids(static_cast<std::size_t>(x.rows * router.num_used)), weights(ids.size()) {
    Route(context, x, router, ids.data(), weights.data());
  }
};

/// A router that gives these logits for the input 1.
struct FixedRouter {
  std::vector<float> logits;
  RouterView view;

  FixedRouter(std::vector<float> values, std::int64_t num_used) : logits(std::move(values)) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(logits.data());
    view.matrix = {Format::kF32, bytes, std::ssize(logits), 1, 4};
    view.num_used = num_used;
    view.is_normalized = true;
  }
  Routed Run() const {
    TestTeam team(1);
    const float one = 1.0F;
    return {team.context, {&one, 1, 1, 1}, view};
  }
};

void CheckRoutes(const ExpertsOptions& o, std::int64_t num_tokens, RowKind rows) {
  Random random(static_cast<std::uint64_t>(num_tokens + o.num_used));
  const ExpertsBlock block(o, random);
  const TestRows x(num_tokens, o.RouterSize(), random);
  TestTeam team(2, *o.ffn.kernels, rows);
  const Routed routed(team.context, x.ReadOnly(), block.view.router);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const Routes expected = ReferenceRoutes(block, x.view.Row(t));
    for (std::int64_t i = 0; i < o.num_used; ++i) {
      const auto at = static_cast<std::size_t>(t * o.num_used + i);
      const auto place = static_cast<std::size_t>(i);
      REQUIRE_MESSAGE(routed.ids[at] == expected.ids[place], o.Name(), ": token ", t, " place ", i);
      REQUIRE_MESSAGE(std::fabs(routed.weights[at] - expected.weights[place]) <= 1e-4, o.Name(),
                      ": token ", t, " place ", i, " weighs ", routed.weights[at]);
    }
    TestTeam alone(1, *o.ffn.kernels, rows);
    const Routed own(alone.context, x.ReadOnly().Some(t, 1), block.view.router);
    for (std::int64_t i = 0; i < o.num_used; ++i) {
      const auto at = static_cast<std::size_t>(t * o.num_used + i);
      const auto place = static_cast<std::size_t>(i);
      REQUIRE_MESSAGE(own.ids[place] == routed.ids[at], "others changed the experts");
      REQUIRE_MESSAGE(own.weights[place] == routed.weights[at], "others changed the weights");
    }
  }
}

}  // namespace

TEST_CASE("RouterMatchesDoublePrecision") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const RouterRule rule : {RouterRule::kSoftmax, RouterRule::kSigmoid}) {
      for (const bool is_normalized : {false, true}) {
        for (const std::int64_t num_used : {1, 3, 11}) {
          ExpertsOptions o;
          o.ffn.kernels = table;
          o.ffn.intermediate_size = 4;
          o.ffn.num_experts = 11;
          o.rule = rule;
          o.is_normalized = is_normalized;
          o.num_used = num_used;
          o.scale = num_used == 3 ? 2.5F : 1.0F;
          for (const std::int64_t num_tokens : {1, 7}) {
            CheckRoutes(o, num_tokens, RowKind::kDecode);
            CheckRoutes(o, num_tokens, RowKind::kPrompt);
          }
        }
      }
    }
  }
}

TEST_CASE("RouterPrefersLowerIdsOfEqualLogits") {
  REQUIRE(FixedRouter({1, 2, 2, 1, 2, 2}, 3).Run().ids == std::vector<std::int32_t>{1, 2, 4});
  REQUIRE(FixedRouter({0, 0, 0, 0}, 2).Run().ids == std::vector<std::int32_t>{0, 1});
  REQUIRE(FixedRouter({3, 1, 3, 2, 1}, 4).Run().ids == std::vector<std::int32_t>{0, 1, 2, 3});
  REQUIRE(FixedRouter({0, 0}, 2).Run().weights == std::vector<float>{0.5F, 0.5F});
}

TEST_CASE("RouterTakesLargeLogits") {
  const Routed routed = FixedRouter({-1000, 900, 899, 1000}, 2).Run();
  REQUIRE(routed.ids == std::vector<std::int32_t>{1, 3});
  REQUIRE(routed.weights[0] < 1e-30F);
  REQUIRE(routed.weights[1] == 1.0F);
}

TEST_CASE("RouterShowsNaN") {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const Routed routed = FixedRouter({1, kNaN, 3, 2}, 2).Run();
  REQUIRE(routed.ids == std::vector<std::int32_t>{2, 3});
  for (const float weight : routed.weights) REQUIRE(std::isnan(weight));
  REQUIRE(FixedRouter({kNaN, kNaN, 1}, 2).Run().ids == std::vector<std::int32_t>{0, 2});
}

TEST_CASE("RouterChoosesBySigmoidsPlusABias") {
  FixedRouter router({4, 3, 2, 1}, 2);
  router.view.rule = RouterRule::kSigmoid;
  const std::vector<float> bias = {-1, 0, 0.5F, 0};
  router.view.selection_bias = bias.data();
  const Routed routed = router.Run();
  REQUIRE(routed.ids == std::vector<std::int32_t>{1, 2});
  const double first = 1.0 / (1.0 + std::exp(-3.0));
  const double second = 1.0 / (1.0 + std::exp(-2.0));
  REQUIRE(std::fabs(routed.weights[0] - first / (first + second)) < 1e-6);
}

TEST_CASE("RouterDividesSmallSigmoidsByALeastSum") {
  FixedRouter router({-20, -21, -22}, 2);
  router.view.rule = RouterRule::kSigmoid;
  const Routed routed = router.Run();
  const double expected = 1.0 / (1.0 + std::exp(20.0)) / 0x1p-14;
  REQUIRE(std::fabs(routed.weights[0] - expected) < 1e-6 * expected);
}

}  // namespace powerinfer::testing
