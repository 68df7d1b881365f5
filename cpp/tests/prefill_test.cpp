// RunPrefillFFN on every table: pairs found, masked and multiplied, against plain loops.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/prefill_testing.h"

namespace powerinfer::testing {
namespace {

using namespace prefill;  // NOLINT: all of it is for these tests

struct Limit {
  bool is_pooled;
  double error;
};

/// Firing values lie just above zero here: where activations are rounded, to int8 or to bfloat16
/// (0.2 % in one product), single outputs say little.
Limit LimitOf(const Options& options) {
  if (InfoOf(options.format).block_size > 1) return {true, 0.02};
  if (RoundsToBf16(*options.kernels, options.format)) return {true, 0.005};
  return {false, 2e-4};
}

void CheckShares(const Options& options, const Block& block, const TestRows& x,
                 const NeuronIds* mask, const SkipShares& shares) {
  const std::string name = options.Name() + (mask != nullptr ? " masked" : "") + ", shares " +
                           std::to_string(shares.listed) + " " + std::to_string(shares.firing);
  TestRows out(options.num_tokens, options.hidden_size);
  const FFNStats stats = RunOnce(*options.kernels, 1, x, block, mask, out, shares);
  const Errors errors = ErrorsOf(block, x, mask, out);
  const Limit limit = LimitOf(options);
  const double error = limit.is_pooled ? errors.pooled : errors.largest;
  REQUIRE_MESSAGE(error < limit.error, name, ": error ", error);
  REQUIRE_MESSAGE(stats.total == options.num_tokens * options.intermediate_size, name, ": total");
  REQUIRE_MESSAGE((stats.active > 0 && stats.active <= stats.predicted), name, ": active");
  REQUIRE_MESSAGE((mask != nullptr || stats.predicted == stats.total), name, ": predicted");
  for (const std::int32_t num_threads : {2, 5}) {
    TestRows again(options.num_tokens, options.hidden_size);
    RunOnce(*options.kernels, num_threads, x, block, mask, again, shares);
    REQUIRE_MESSAGE(std::memcmp(out.data.data(), again.data.data(), out.data.size() * 4) == 0, name,
                    ": bits depend on threads");
  }
}

void CheckBlock(const Options& options, bool is_masked, Random& random) {
  const Block block(options, random);
  const Inputs x(options, random);
  const Lists lists(options.num_tokens, options.intermediate_size);
  const NeuronIds view = lists.View();
  const NeuronIds* mask = is_masked ? &view : nullptr;
  for (const SkipShares& shares : {kListed, kSkip, kDense, kMixed}) {
    CheckShares(options, block, x, mask, shares);
  }
}

// kSilu is cut.
constexpr std::array<ActivationKind, 5> kSparseKinds = {
    ActivationKind::kRelu, ActivationKind::kDRelu, ActivationKind::kFatRelu, ActivationKind::kRelu2,
    ActivationKind::kSilu};

}  // namespace

TEST_CASE("PrefillEqualsLoops") {
  Random random(11);
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kSparseKinds) {
      for (const bool is_gated : {true, false}) {
        if (!is_gated && kind == ActivationKind::kDRelu) continue;
        for (const bool is_transposed : {true, false}) {
          Options options;
          options.kernels = table;
          options.kind = kind;
          options.is_gated = is_gated;
          options.is_transposed = is_transposed;
          options.is_cut = kind == ActivationKind::kSilu;
          CheckBlock(options, false, random);
          CheckBlock(options, true, random);
        }
      }
    }
  }
}

TEST_CASE("PrefillOfEveryFormat") {
  Random random(12);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format >= Format::kLowbit2) continue;  // for predictors only
      Options options;
      options.kernels = table;
      options.format = format;
      options.kind = ActivationKind::kDRelu;
      options.hidden_size = 512;
      options.intermediate_size = 140;
      CheckBlock(options, false, random);
    }
  }
}

TEST_CASE("PrefillOfSeveralBlocksAndPieces") {
  Random random(13);
  Options options;
  options.num_tokens = 530;   // more than one block of tokens
  options.hidden_size = 530;  // more than one piece of columns, not whole vectors
  options.intermediate_size = 90;
  options.format = Format::kF16;
  for (const KernelTable* table : AvailableKernels()) {
    if (table->name == "portable") continue;  // slow
    options.kernels = table;
    CheckBlock(options, true, random);
  }
}

TEST_CASE("PrefillReadsLess") {
  Random random(14);
  Options options;
  options.intermediate_size = 2000;
  options.hidden_size = 64;
  Block block(options, random);
  for (std::int64_t i = 0; i < 1900; ++i) block.gate_bias[static_cast<std::size_t>(i)] = -1e6F;
  const TestRows x(options.num_tokens, options.hidden_size, random);
  TestRows out(options.num_tokens, options.hidden_size);
  const FFNStats stats = RunOnce(*options.kernels, 2, x, block, nullptr, out);
  REQUIRE_MESSAGE(ErrorsOf(block, x, nullptr, out).largest < 2e-4, "error");
  const std::int64_t fewest = block.view.gate.NumBytes();
  REQUIRE_MESSAGE(
      (stats.bytes_read > fewest && stats.bytes_read <= fewest + 200 * block.view.up.row_bytes),
      "rows that fire for no token are not read");
}

TEST_CASE("PrefillWithAllOrNoneFiring") {
  Random random(15);
  for (const float shift : {-1e3F, 1e3F}) {
    for (const bool is_transposed : {true, false}) {
      Options options;
      options.is_transposed = is_transposed;
      Block block(options, random);
      std::fill(block.gate_bias.begin(), block.gate_bias.end(), shift);
      const TestRows x(options.num_tokens, options.hidden_size, random);
      TestRows out(options.num_tokens, options.hidden_size);
      const FFNStats stats = RunOnce(*options.kernels, 2, x, block, nullptr, out,
                                     SharesFor(*options.kernels, block.view));
      REQUIRE_MESSAGE(ErrorsOf(block, x, nullptr, out).largest < 2e-4, options.Name());
      REQUIRE_MESSAGE(stats.active == (shift > 0.0F ? stats.total : 0), options.Name(), ": active");
    }
  }
}

TEST_CASE("PrefillOfListedNeuronsOfAnyActivation") {
  Random random(16);
  Options options;
  options.kind = ActivationKind::kSilu;
  CheckBlock(options, true, random);
}

TEST_CASE("PrefillLetsDamageThrough") {
  Random random(17);
  const Options options;
  const Block block(options, random);
  TestRows x(options.num_tokens, options.hidden_size, random);
  x.view.Row(5)[3] = std::numeric_limits<float>::quiet_NaN();
  TestRows out(options.num_tokens, options.hidden_size);
  RunOnce(*options.kernels, 2, x, block, nullptr, out);
  REQUIRE_MESSAGE(std::isnan(out.view.Row(5)[0]), "NaN fires");
  REQUIRE_MESSAGE((std::isfinite(out.view.Row(4)[0]) && std::isfinite(out.view.Row(6)[0])),
                  "other tokens are whole");
}

TEST_CASE("PrefillMaskHidesDamage") {
  Random random(18);
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kDRelu}) {
    Options options;
    options.kind = kind;
    Block block(options, random);
    for (std::size_t i = 0; i < block.gate_bias.size(); ++i) {
      if (i % 3 == 0) block.gate_bias[i] = std::numeric_limits<float>::quiet_NaN();
      if (i % 3 == 2) block.up_bias[i] = std::numeric_limits<float>::infinity();
    }
    std::vector<std::int64_t> offsets = {0};
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < options.num_tokens; ++t) {
      for (std::int32_t i = 1; i < options.intermediate_size; i += 3) ids.push_back(i);
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    const NeuronIds mask{offsets.data(), ids.data(), options.num_tokens};
    const TestRows x(options.num_tokens, options.hidden_size, random);
    for (const SkipShares& shares : {kListed, kSkip, kDense}) {
      TestRows out(options.num_tokens, options.hidden_size);
      const FFNStats stats = RunOnce(*options.kernels, 2, x, block, &mask, out, shares);
      REQUIRE_MESSAGE(ErrorsOf(block, x, &mask, out).largest < 2e-4, options.Name(), ", shares ",
                      shares.firing, ": pairs that are not listed count as zero");
      REQUIRE_MESSAGE(stats.active <= std::ssize(ids), options.Name(), ": active");
    }
  }
}

}  // namespace powerinfer::testing
