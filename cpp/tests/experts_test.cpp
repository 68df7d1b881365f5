// Mixtures of experts on every table against double precision: decode and prompt, every way to
// choose neurons.
#include "sparse/experts.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/experts_testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::array<std::int32_t, 3> kThreads = {1, 2, 5};

/// Tokens whose results are compared with double precision, which takes long.
bool IsChecked(std::int64_t token, std::int64_t num_tokens) {
  return num_tokens <= 8 || token % (num_tokens / 8) == 0;
}

void CheckStats(const ExpertsOptions& o, const FFNStats& stats, std::int64_t num_tokens) {
  REQUIRE_MESSAGE(stats.total == num_tokens * o.ffn.NumNeurons(), o.Name(), ": wrong total");
  REQUIRE_MESSAGE(stats.predicted == num_tokens * o.num_used * o.ffn.intermediate_size, o.Name(),
                  ": wrong predicted ", stats.predicted);
}

void CheckExperts(const ExpertsOptions& o, std::int64_t num_tokens, RowKind rows) {
  Random random(static_cast<std::uint64_t>(num_tokens * 10 + static_cast<int>(o.ffn.kind)));
  const ExpertsBlock block(o, random);
  const TestRows x(num_tokens, o.ffn.hidden_size, random);
  const TestRows routed(num_tokens, o.RouterSize(), random);
  std::vector<float> before;
  for (const std::int32_t threads : kThreads) {
    TestTeam team(threads, *o.ffn.kernels, rows);
    TestRows out(num_tokens, o.ffn.hidden_size);
    FFNStats stats;
    RunExperts(team.context, x.ReadOnly(), routed.ReadOnly(), block.view, {}, out.view, &stats);
    REQUIRE_MESSAGE((threads == 1 || SameBits(before, out.data)), o.Name(),
                    ": the number of threads changed bits");
    before = out.data;
    if (threads != 2) continue;
    CheckStats(o, stats, num_tokens);
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      if (!IsChecked(t, num_tokens)) continue;
      const FFNResult expected = ExpertsReference(block, x.view.Row(t), routed.view.Row(t));
      active += expected.active;
      CheckRow(o.ffn, rows, expected, out.view.Row(t), "token " + std::to_string(t));
    }
    const bool is_counted = num_tokens <= 8 && Tolerance(o.ffn, rows) < 1e-3;
    REQUIRE_MESSAGE((!is_counted || stats.active == active), o.Name(), ": ", stats.active,
                    " active, expected ", active);
  }
}

void CheckKinds(const ExpertsOptions& o) {
  for (const std::int64_t num_tokens : {1, 7}) CheckExperts(o, num_tokens, RowKind::kDecode);
  CheckExperts(o, 7, RowKind::kPrompt);
}

std::vector<float> Run(const ExpertsOptions& o, const FFNView& view, const TestRows& x,
                       RowKind rows = RowKind::kDecode, const NeuronChoice& choice = {}) {
  TestTeam team(2, *o.ffn.kernels, rows);
  TestRows out(x.view.rows, o.ffn.hidden_size);
  RunExperts(team.context, x.ReadOnly(), x.ReadOnly(), view, choice, out.view, nullptr);
  return out.data;
}

}  // namespace

TEST_CASE("ExpertsMatchDoublePrecisionForEveryActivationAndLayout") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kKinds) {
      for (int bits = 0; bits < 8; ++bits) {
        ExpertsOptions o;
        o.ffn.kernels = table;
        o.ffn.kind = kind;
        o.ffn.is_gated = (bits & 1) != 0;
        o.ffn.is_transposed = (bits & 2) != 0;
        o.ffn.is_exact = (bits & 4) != 0;
        CheckKinds(o);
      }
    }
  }
}

TEST_CASE("CutExpertsMatchDoublePrecisionDenseAndExact") {
  for (const KernelTable* table : AvailableKernels()) {
    for (int bits = 0; bits < 8; ++bits) {
      ExpertsOptions o;
      o.ffn.kernels = table;
      o.ffn.kind = (bits & 1) != 0 ? ActivationKind::kSilu : ActivationKind::kGelu;
      o.ffn.is_cut = true;
      o.ffn.is_transposed = (bits & 2) != 0;
      o.ffn.is_exact = (bits & 4) != 0;
      CheckKinds(o);
    }
  }
}

TEST_CASE("ExpertsMatchDoublePrecisionForEveryFormat") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format :
         {Format::kF32, Format::kF16, Format::kQ4_0, Format::kQ4_0Superblock, Format::kQ8_0}) {
      for (int bits = 0; bits < 4; ++bits) {
        ExpertsOptions o;
        o.ffn.kernels = table;
        o.ffn.gate = o.ffn.rest = format;
        o.ffn.hidden_size = o.ffn.intermediate_size = 256;
        o.ffn.num_experts = 3;
        o.ffn.kind = (bits & 1) != 0 ? ActivationKind::kRelu : ActivationKind::kSilu;
        o.ffn.is_transposed = (bits & 2) != 0;
        CheckKinds(o);
      }
    }
  }
}

TEST_CASE("ExpertsOneAndAllAreUsed") {
  for (const std::int64_t num_used : {1, 5}) {
    for (int bits = 0; bits < 4; ++bits) {
      ExpertsOptions o;
      o.num_used = num_used;
      o.rule = (bits & 1) != 0 ? RouterRule::kSigmoid : RouterRule::kSoftmax;
      o.is_normalized = num_used == 1;
      o.ffn.is_transposed = (bits & 2) != 0;
      CheckKinds(o);
    }
  }
}

TEST_CASE("ExpertsMayBeNarrowerThanWhatTheirRouterSees") {
  for (const KernelTable* table : AvailableKernels()) {
    for (int bits = 0; bits < 4; ++bits) {
      ExpertsOptions o;
      o.ffn.kernels = table;
      o.ffn.kind = ActivationKind::kRelu2;
      o.ffn.is_gated = (bits & 1) != 0;
      o.ffn.is_transposed = (bits & 2) != 0;
      o.rule = RouterRule::kSigmoid;
      o.scale = 2.5F;
      o.router_size = 3 * o.ffn.hidden_size;
      CheckKinds(o);
    }
  }
}

TEST_CASE("ExpertsOfManyTokens") {
  for (const bool is_transposed : {false, true}) {
    ExpertsOptions o;
    o.ffn.is_transposed = is_transposed;
    CheckExperts(o, 600, RowKind::kDecode);
    CheckExperts(o, 600, RowKind::kPrompt);
  }
}

TEST_CASE("ExpertsTokensDoNotDependOnOthers") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
      for (int bits = 0; bits < 8; ++bits) {
        ExpertsOptions o;
        o.ffn.kernels = table;
        o.ffn.is_exact = (bits & 1) != 0;
        o.ffn.is_transposed = (bits & 2) != 0;
        o.ffn.gate = o.ffn.rest = (bits & 4) != 0 ? Format::kQ8_0 : Format::kF32;
        o.ffn.hidden_size = 64;
        o.ffn.intermediate_size = 160;
        Random random(9);
        const ExpertsBlock block(o, random);
        const TestRows x(40, o.ffn.hidden_size, random);
        const std::vector<float> all = Run(o, block.view, x, rows);
        for (std::int64_t t = 0; t < 40; t += 3) {
          TestRows one(1, o.ffn.hidden_size);
          std::copy_n(x.view.Row(t), o.ffn.hidden_size, one.view.Row(0));
          const std::vector<float> alone = Run(o, block.view, one, rows);
          for (std::int64_t c = 0; c < o.ffn.hidden_size; ++c) {
            const auto at = static_cast<std::size_t>(t * x.view.stride + c);
            REQUIRE_MESSAGE(alone[static_cast<std::size_t>(c)] == all[at], o.Name(),
                            ": others changed token ", t);
          }
        }
      }
    }
  }
}

TEST_CASE("ExpertsExactEqualsOff") {
  for (const Format format : {Format::kF32, Format::kQ4_0Superblock}) {
    for (const bool is_transposed : {false, true}) {
      ExpertsOptions o;
      o.ffn.gate = o.ffn.rest = format;
      o.ffn.hidden_size = o.ffn.intermediate_size = 256;
      o.ffn.is_transposed = is_transposed;
      Random random(4);
      ExpertsBlock block(o, random);
      const TestRows x(7, o.ffn.hidden_size, random);
      const std::vector<float> exact = Run(o, block.view, x);
      block.view.is_exact_sparse = false;
      REQUIRE_MESSAGE(SameBits(exact, Run(o, block.view, x)), o.Name(), ": skipping loses bits");
    }
  }
}

TEST_CASE("ExpertsReadOnlyWhatIsChosen") {
  ExpertsOptions o;
  o.ffn.is_exact = false;
  Random random(3);
  const ExpertsBlock block(o, random);
  const TestRows x(1, o.ffn.hidden_size, random);
  TestTeam team(2);
  TestRows out(1, o.ffn.hidden_size);
  FFNStats stats;
  RunExperts(team.context, x.ReadOnly(), x.ReadOnly(), block.view, {}, out.view, &stats);
  const FFNView& view = block.view;
  const std::int64_t all = view.gate.NumBytes() + view.up.NumBytes() + view.down.NumBytes();
  REQUIRE(stats.bytes_read == view.router.matrix.NumBytes() + all / o.ffn.num_experts * 2);
}

TEST_CASE("ExpertsShowNaN") {
  for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
    for (int bits = 0; bits < 4; ++bits) {
      ExpertsOptions o;
      o.ffn.is_exact = (bits & 1) != 0;
      o.ffn.is_transposed = (bits & 2) != 0;
      Random random(5);
      ExpertsBlock block(o, random);
      const TestRows x(3, o.ffn.hidden_size, random);
      block.router_bias[4] = std::numeric_limits<float>::quiet_NaN();
      // Nothing fires, and there are no biases to weigh.
      for (float& value : block.block.gate_bias) value = -1e6F;
      block.view.down_bias = nullptr;
      const std::vector<float> out = Run(o, block.view, x, rows);
      for (std::int64_t t = 0; t < 3; ++t) {
        REQUIRE_MESSAGE(std::isnan(out[static_cast<std::size_t>(t * x.view.stride)]), o.Name(),
                        ": NaN was lost");
      }
    }
  }
}

}  // namespace powerinfer::testing
