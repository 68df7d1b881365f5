// A token's bits in RunPrefillFFN, whatever other tokens accompany it, on every table.
#include <algorithm>
#include <array>
#include <vector>

#include "tests/prefill_testing.h"

namespace powerinfer::testing {
namespace {

using namespace prefill;  // NOLINT: all of it is for these tests

/// Checks `tokens` of x in a call with other tokens.
void CheckTokens(const Options& options, const Block& block, const TestRows& x,
                 const NeuronIds* mask, const SkipShares& shares, const TestRows& together,
                 const std::vector<std::int64_t>& tokens) {
  TestRows some(std::ssize(tokens), options.hidden_size);
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < std::ssize(tokens); ++i) {
    const std::int64_t token = tokens[static_cast<std::size_t>(i)];
    std::copy_n(x.view.Row(token), options.hidden_size, some.view.Row(i));
    if (mask != nullptr) ids.insert(ids.end(), mask->Of(token).begin(), mask->Of(token).end());
    offsets.push_back(std::ssize(ids));
  }
  const NeuronIds listed{offsets.data(), ids.data(), std::ssize(tokens)};
  TestRows out(std::ssize(tokens), options.hidden_size);
  RunOnce(*options.kernels, 2, some, block, mask != nullptr ? &listed : nullptr, out, shares);
  for (std::int64_t i = 0; i < std::ssize(tokens); ++i) {
    const std::int64_t token = tokens[static_cast<std::size_t>(i)];
    REQUIRE_MESSAGE(SameRow(out, i, together, token), options.Name(),
                    mask != nullptr ? " masked" : "", ", shares ", shares.firing, ": token ", token,
                    " has other bits among ", tokens.size());
  }
}

/// Checks a token's bits alone, in cuts, and among tokens that take another way or the same one.
void CheckBits(const Options& options, const SkipShares& shares, bool is_masked, Random& random) {
  const Block block(options, random);
  const Inputs x(options, random);
  const Lists lists(options.num_tokens, options.intermediate_size);
  const NeuronIds view = lists.View();
  const NeuronIds* mask = is_masked ? &view : nullptr;
  TestRows together(options.num_tokens, options.hidden_size);
  RunOnce(*options.kernels, 2, x, block, mask, together, shares);
  std::array<std::vector<std::int64_t>, 3> parts;
  for (std::int64_t t = 0; t < options.num_tokens; ++t) {
    parts[static_cast<std::size_t>(t % 2)].push_back(t);
    if (t > 4 && t < 14) parts[2].push_back(t);
  }
  std::ranges::reverse(parts[1]);
  for (std::int64_t t = 0; t < std::min<std::int64_t>(10, options.num_tokens); ++t) {
    CheckTokens(options, block, x, mask, shares, together, {t});
  }
  for (const std::vector<std::int64_t>& part : parts) {
    CheckTokens(options, block, x, mask, shares, together, part);
  }
}

}  // namespace

TEST_CASE("PrefillTokenHasItsBitsWhateverStandsBesideIt") {
  Random random(21);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format >= Format::kLowbit2) continue;  // for predictors only
      Options options;
      options.kernels = table;
      options.format = format;
      options.num_tokens = 31;
      options.hidden_size = 512;
      options.intermediate_size = 140;
      for (const bool is_transposed : {true, false}) {
        // Columns of a down that is not transposed are whole blocks.
        if (!is_transposed) options.intermediate_size = 256;
        options.is_transposed = is_transposed;
        for (const bool is_masked : {false, true}) {
          CheckBits(options, kMixed, is_masked, random);
        }
      }
    }
  }
}

TEST_CASE("PrefillTokenHasItsBitsInEveryForcedWayAndAcrossBlocks") {
  Random random(22);
  Options options;
  for (const KernelTable* table : AvailableKernels()) {
    options.kernels = table;
    options.num_tokens = 67;
    for (const SkipShares& shares : {kListed, kSkip, kDense}) {
      CheckBits(options, shares, true, random);
    }
    options.num_tokens = 530;
    options.intermediate_size = 90;
    if (table->name != "portable") CheckBits(options, kMixed, true, random);
  }
}

TEST_CASE("PrefillTokensOfABlockChooseForThemselves") {
  Random random(23);
  for (const bool is_masked : {false, true}) {
    const Options options;
    const Block block(options, random);
    const Inputs x(options, random);
    const Lists lists(options.num_tokens, options.intermediate_size);
    const NeuronIds view = lists.View();
    const NeuronIds* mask = is_masked ? &view : nullptr;
    TestRows mixed(options.num_tokens, options.hidden_size);
    TestRows skipped(options.num_tokens, options.hidden_size);
    TestRows dense(options.num_tokens, options.hidden_size);
    RunOnce(*options.kernels, 2, x, block, mask, mixed, kMixed);
    RunOnce(*options.kernels, 2, x, block, mask, skipped, kSkip);
    RunOnce(*options.kernels, 2, x, block, mask, dense, kDense);
    std::int64_t num_skipping = 0;
    std::int64_t num_dense = 0;
    for (std::int64_t t = 0; t < options.num_tokens; ++t) {
      num_skipping += SameRow(mixed, t, dense, t) ? 0 : 1;
      num_dense += SameRow(mixed, t, skipped, t) ? 0 : 1;
    }
    REQUIRE_MESSAGE((num_skipping > 10 && num_dense > 10), "skipping ", num_skipping, ", dense ",
                    num_dense);
  }
}

}  // namespace powerinfer::testing
