// RunFFN on every table: all activations, gated or not, down plain or transposed, dense or exact.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/ffn_testing.h"

namespace powerinfer::testing {
namespace {

void CheckBlock(const FFNOptions& o, std::int64_t num_tokens, RowKind rows) {
  Random random(static_cast<std::uint64_t>(num_tokens * 10 + static_cast<int>(o.kind)));
  const FFNBlock block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 2, 5}) {
    TestTeam team(threads, *o.kernels, rows);
    TestRows out(num_tokens, o.hidden_size);
    FFNStats stats;
    RunFFN(team.context, x.ReadOnly(), block.view, out.view, &stats);
    if (threads > 1) {
      REQUIRE_MESSAGE(SameBits(before, out.data), o.Name(), ": the number of threads changed bits");
      continue;
    }
    before = out.data;
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const FFNResult expected = Reference(block, x.view.Row(t));
      active += expected.active;
      CheckRow(o, rows, expected, out.view.Row(t), "token " + std::to_string(t));
    }
    REQUIRE_MESSAGE(stats.total == num_tokens * o.intermediate_size, o.Name(), ": wrong total");
    if (Tolerance(o, rows) < 1e-3) {
      REQUIRE_MESSAGE(stats.active == active, o.Name(), ": ", stats.active, " active, expected ",
                      active);
    }
  }
}

/// Bytes that the exact path of one token must read, from the reference's own counts.
std::int64_t ExactBytes(const FFNBlock& block, const float* x) {
  const FFNView& view = block.view;
  std::int64_t deciding = 0;
  for (std::int64_t i = 0; i < view.IntermediateSize(); ++i) {
    deciding += Row(*block.gate, i, x, block.gate_bias.data()) > 0.0 ? 1 : 0;
  }
  return view.gate.NumBytes() + deciding * view.up.row_bytes +
         Reference(block, x).active * view.down.row_bytes;
}

}  // namespace

TEST_CASE("FFNMatchesDoublePrecisionForEveryActivationAndLayout") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kKinds) {
      for (int bits = 0; bits < 8; ++bits) {
        FFNOptions o;
        o.kernels = table;
        o.kind = kind;
        o.is_gated = (bits & 1) != 0;
        o.is_transposed = (bits & 2) != 0;
        o.is_exact = (bits & 4) != 0;
        for (const std::int64_t num_tokens : {1, 3, 13, 40}) {
          CheckBlock(o, num_tokens, RowKind::kDecode);
        }
        for (const std::int64_t num_tokens : {1, 40}) CheckBlock(o, num_tokens, RowKind::kPrompt);
      }
    }
  }
}

TEST_CASE("CutFFNMatchesDoublePrecisionDenseAndExact") {
  for (const KernelTable* table : AvailableKernels()) {
    for (int bits = 0; bits < 16; ++bits) {
      FFNOptions o;
      o.kernels = table;
      o.kind = (bits & 1) != 0 ? ActivationKind::kSilu : ActivationKind::kGelu;
      o.is_cut = true;
      o.is_gated = (bits & 2) != 0;
      o.is_transposed = (bits & 4) != 0;
      o.is_exact = (bits & 8) != 0;
      for (const std::int64_t num_tokens : {1, 13, 40}) {
        CheckBlock(o, num_tokens, RowKind::kDecode);
      }
      for (const std::int64_t num_tokens : {1, 40}) CheckBlock(o, num_tokens, RowKind::kPrompt);
    }
  }
}

TEST_CASE("FFNMatchesDoublePrecisionForEveryFormat") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format == Format::kSign) continue;  // multiplies signs: for predictors only
      FFNOptions o;
      o.kernels = table;
      o.kind = ActivationKind::kDRelu;
      o.gate = format;
      o.rest = format;
      o.hidden_size = 256;
      o.intermediate_size = 512;
      for (const bool is_exact : {false, true}) {
        o.is_exact = is_exact;
        for (const std::int64_t num_tokens : {1, 9}) CheckBlock(o, num_tokens, RowKind::kDecode);
        for (const std::int64_t num_tokens : {1, 41}) CheckBlock(o, num_tokens, RowKind::kPrompt);
      }
    }
  }
}

TEST_CASE("FFNExactReadsOnlyRowsOfFiringNeurons") {
  FFNOptions o;
  o.kind = ActivationKind::kDRelu;
  Random random(3);
  const FFNBlock block(o, random);
  const TestRows x(1, o.hidden_size, random);
  TestTeam team(2);
  TestRows out(1, o.hidden_size);
  FFNStats stats;
  RunFFN(team.context, x.ReadOnly(), block.view, out.view, &stats);
  REQUIRE_MESSAGE((stats.active > 0 && stats.active < o.intermediate_size / 3),
                  "the case is not sparse");
  REQUIRE_MESSAGE(stats.bytes_read == ExactBytes(block, x.view.Row(0)), "wrong bytes read");
}

TEST_CASE("FFNKeepsNaN") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kKinds) {
      for (const RowKind rows : {RowKind::kDecode, RowKind::kPrompt}) {
        for (const bool is_exact : {false, true}) {
          const std::int64_t num_tokens = 13;
          FFNOptions o;
          o.kernels = table;
          o.kind = kind;
          o.is_exact = is_exact;
          Random random(5);
          const FFNBlock block(o, random);
          TestRows x(num_tokens, o.hidden_size, random);
          x.view.Row(0)[1] = std::numeric_limits<float>::quiet_NaN();
          TestRows out(num_tokens, o.hidden_size);
          TestTeam team(2, *table, rows);
          RunFFN(team.context, x.ReadOnly(), block.view, out.view, nullptr);
          REQUIRE_MESSAGE(std::isnan(out.view.Row(0)[0]), o.Name(), ": NaN was lost");
          REQUIRE_MESSAGE(std::isfinite(out.view.Row(1)[0]), o.Name(), ": NaN leaked");
        }
      }
    }
  }
}

TEST_CASE("FFNActivationsAreAccurate") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind :
         {ActivationKind::kSilu, ActivationKind::kGelu, ActivationKind::kClampedSwiGlu}) {
      const Activation activation{kind, 0.0F};
      std::vector<float> inputs;
      for (float z = -100.0F; z < 100.0F; z += 0.0437F) inputs.push_back(z);
      std::vector<float> values = inputs;
      Activate(*table, activation, std::ssize(values), values.data(), nullptr);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double expected = Apply(activation, static_cast<double>(inputs[i]));
        REQUIRE_MESSAGE(std::fabs(static_cast<double>(values[i]) - expected) <=
                            1e-6 * std::fabs(expected) + 2e-6,
                        "activation of ", inputs[i], " is ", values[i]);
      }
    }
  }
}

}  // namespace powerinfer::testing
