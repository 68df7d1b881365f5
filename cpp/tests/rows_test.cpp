// Norms, rotation, e^x and memory against double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/exp.h"
#include "base/page_memory.h"
#include "base/tanh.h"
#include "ops/embed.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "tests/ops_testing.h"

namespace powerinfer::testing {
namespace {

TEST_CASE("FastTanhIsAccurate") {
  for (float x = -12.0F; x <= 12.0F; x += 0.003F) {
    const double exact = std::tanh(static_cast<double>(x));
    REQUIRE_MESSAGE(std::fabs(FastTanh(x) - exact) <= 4e-7 * std::fabs(exact), "tanh ", x);
  }
  REQUIRE_MESSAGE(FastTanh(0.0F) == 0.0F, "tanh 0");
  REQUIRE_MESSAGE(FastTanh(std::numeric_limits<float>::infinity()) == 1.0F, "tanh inf");
  REQUIRE_MESSAGE(FastTanh(-1e30F) == -1.0F, "tanh of a large number");
  REQUIRE_MESSAGE(std::isnan(FastTanh(std::numeric_limits<float>::quiet_NaN())), "tanh NaN");
}

TEST_CASE("FastExpIsAccurate") {
  for (int i = 0; i <= 174990; ++i) {
    const float x = -87.0F + static_cast<float>(i) * 1e-3F;
    const double exact = std::exp(static_cast<double>(x));
    REQUIRE_MESSAGE(std::fabs(FastExp(x) - exact) <= 2e-7 * exact, "e^", x);
  }
  REQUIRE_MESSAGE(FastExp(0.0F) == 1.0F, "e^0");
  REQUIRE_MESSAGE(FastExp(-std::numeric_limits<float>::infinity()) < 1e-37F, "e^-inf");
  REQUIRE_MESSAGE(std::isnan(FastExp(std::numeric_limits<float>::quiet_NaN())), "e^NaN");
}

struct Norms {
  double mean = 0.0, variance = 0.0, squares = 0.0;

  explicit Norms(const float* row, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) mean += row[i] / static_cast<double>(n);
    for (std::int64_t i = 0; i < n; ++i) {
      variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(n);
      squares += static_cast<double>(row[i]) * row[i] / static_cast<double>(n);
    }
  }
};

TEST_CASE("NormsAgreeWithDoublePrecision") {
  Random random(1);
  ThreadTeam team(3);
  constexpr float kEps = 1e-5F;
  for (const std::int64_t n : {1, 7, 16, 64, 100, 4096}) {
    const std::int64_t rows = 9;
    const std::vector<float> x = RandomFloats(rows * n, random);
    const std::vector<float> weight = RandomFloats(n, random);
    const std::vector<float> bias = RandomFloats(n, random);
    std::vector<float> rms(x.size()), layer(x.size());
    RmsNorm(team, {x.data(), rows, n, n}, weight.data(), kEps, {rms.data(), rows, n, n});
    LayerNorm(team, {x.data(), rows, n, n}, weight.data(), bias.data(), kEps,
              {layer.data(), rows, n, n});
    for (std::int64_t t = 0; t < rows; ++t) {
      const Norms norms(x.data() + t * n, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(t * n + i);
        const auto column = static_cast<std::size_t>(i);
        const double wanted_rms = x[at] / std::sqrt(norms.squares + kEps) * weight[column];
        const double wanted_layer =
            (x[at] - norms.mean) / std::sqrt(norms.variance + kEps) * weight[column] + bias[column];
        REQUIRE_MESSAGE(std::fabs(rms[at] - wanted_rms) < 1e-5, "rms_norm of ", n);
        REQUIRE_MESSAGE(std::fabs(layer[at] - wanted_layer) < 1e-4, "layer_norm of ", n);
      }
    }
  }
}

TEST_CASE("RopeTurnsPairsAndStores") {
  for (const bool is_interleaved : {true, false}) {
    const std::vector<float> cos = {1.0F, 1.0F, 0.0F, 0.6F};  // f32[2 positions, half 2]
    const std::vector<float> sin = {0.0F, 0.0F, 1.0F, 0.8F};
    std::vector<float> q = {1, 2, 3, 4, 5};  // head_dim 5: the last does not rotate
    std::vector<float> k = q;
    const std::vector<float> v = {9, 8, 7, 6, 5};
    const std::int32_t position = 1;
    const std::int32_t sequence = 0;
    const std::int32_t table = 0;
    const BatchView batch{&position, &sequence, &table, 1, 1, 1};
    KVCache cache({1, 4, 1, 5}, Format::kF16);
    TestTeam team(1);
    RopeAndStore(team.context, {q.data(), 1, 5, 5}, {k.data(), 1, 5, 5}, {v.data(), 1, 5, 5}, cache,
                 batch, {cos.data(), sin.data(), 2, 2, is_interleaved});
    const std::vector<float> wanted =
        is_interleaved ? std::vector<float>{-2, 1, 3 * 0.6F - 4 * 0.8F, 3 * 0.8F + 4 * 0.6F, 5}
                       : std::vector<float>{-3, 2 * 0.6F - 4 * 0.8F, 1, 2 * 0.8F + 4 * 0.6F, 5};
    for (std::size_t i = 0; i < 5; ++i) {
      REQUIRE_MESSAGE((std::fabs(q[i] - wanted[i]) < 1e-6F && q[i] == k[i]), "rotated element");
      const auto at = static_cast<std::int64_t>(2 * i);
      const std::uint8_t* stored = cache.Key(0, 0, 1) + at;
      const double half = WeightAt(Format::kF16, stored, 0);
      REQUIRE_MESSAGE(std::fabs(half - static_cast<double>(k[i])) < 4e-3, "stored key");
      REQUIRE_MESSAGE(
          WeightAt(Format::kF16, cache.Value(0, 0, 1) + at, 0) == static_cast<double>(v[i]),
          "stored value");
    }
  }
}

TEST_CASE("CacheRowsKeepNonFiniteValues") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(32, 1.0F);
    values[3] = bad;
    std::vector<std::uint8_t> row(34);
    StoreRow(BestKernels(), values.data(), 32, Format::kQ8_0, row.data());
    REQUIRE_MESSAGE(!std::isfinite(WeightAt(Format::kQ8_0, row.data(), 3)),
                    "a bad value was hidden");
  }
}

TEST_CASE("EmbedChecksIds") {
  Random random(2);
  TestTeam team(2);
  const TestMatrix table(Format::kQ4_0, 5, 64, random);
  std::vector<float> out(2 * 64);
  const std::vector<std::int32_t> good = {4, 0};
  Embed(team.context, table.view, good, {out.data(), 2, 64, 64});
  for (std::int64_t i = 0; i < 64; ++i) {
    const double wanted = WeightAt(Format::kQ4_0, table.view.Row(4), i);
    REQUIRE_MESSAGE(
        std::fabs(out[static_cast<std::size_t>(i)] - wanted) < 1e-6 * std::fabs(wanted) + 1e-9,
        "embedding row");
  }
  for (const std::int32_t bad : {-1, 5}) {
    bool was_refused = false;
    try {
      const std::vector<std::int32_t> ids = {0, bad};
      Embed(team.context, table.view, ids, {out.data(), 2, 64, 64});
    } catch (const std::out_of_range&) {
      was_refused = true;
    }
    REQUIRE_MESSAGE(was_refused, "id ", bad, " must be an error");
  }
}

TEST_CASE("ArenaPiecesOutliveTheArena") {
  ArenaBlock first, second;
  {
    Arena arena;
    first = arena.Allocate(100);
    second = arena.Allocate(std::size_t{200} << 20U);  // more than a region
    REQUIRE_MESSAGE(arena.Allocate(1).data != first.data + 64, "pieces overlap");
  }
  std::fill_n(first.data, 100, std::uint8_t{1});
  second.data[(std::size_t{200} << 20U) - 1] = 2;
  REQUIRE_MESSAGE(first.data[99] == 1, "piece lost");
}

}  // namespace
}  // namespace powerinfer::testing
