// Blocks over listed neurons, and batches: each token has the bits it has alone.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tests/ffn_testing.h"

namespace powerinfer::testing {
namespace {

/// Lists of a third of the neurons, of none (token 1) and of all (token 2).
struct TestLists {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;
  NeuronIds view;

  TestLists(std::int64_t num_tokens, std::int64_t num_neurons, Random& random) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t i = 0; i < num_neurons; ++i) {
        const bool is_random = random.Uniform(0.0F, 3.0F) < 1.0F;
        if (t == 2 || (t != 1 && is_random)) ids.push_back(static_cast<std::int32_t>(i));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    view = {offsets.data(), ids.data(), num_tokens};
  }
};

void CheckListed(const FFNOptions& o, std::int64_t num_tokens) {
  Random random(static_cast<std::uint64_t>(num_tokens));
  const FFNBlock block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  const TestLists lists(num_tokens, o.intermediate_size, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 2, 5}) {
    TestTeam team(threads, *o.kernels);
    TestRows out(num_tokens, o.hidden_size);
    FFNStats stats;
    RunListedFFN(team.context, x.ReadOnly(), block.view, lists.view, out.view, &stats);
    REQUIRE_MESSAGE((threads == 1 || SameBits(before, out.data)), o.Name(),
                    ": threads changed bits");
    before = out.data;
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const auto listed = lists.view.Of(t);
      const FFNResult expected = Reference(block, x.view.Row(t), [&](std::int64_t i) {
        return std::binary_search(listed.begin(), listed.end(), static_cast<std::int32_t>(i));
      });
      active += expected.active;
      CheckRow(o, RowKind::kDecode, expected, out.view.Row(t),
               "listed neurons of token " + std::to_string(t));
    }
    REQUIRE_MESSAGE(stats.active == active, o.Name(), ": wrong number of active neurons");
    REQUIRE_MESSAGE(stats.predicted == std::ssize(lists.ids), o.Name(), ": wrong number listed");
    REQUIRE_MESSAGE(stats.total == num_tokens * o.intermediate_size, o.Name(), ": wrong total");
  }
}

/// Compares every token of a batch with the same token alone, exact and over lists.
void CheckBatch(const FFNOptions& o, std::int64_t num_tokens) {
  Random random(7);
  const FFNBlock block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  const TestLists lists(num_tokens, o.intermediate_size, random);
  TestTeam team(2, *o.kernels);
  TestRows exact(num_tokens, o.hidden_size);
  TestRows listed(num_tokens, o.hidden_size);
  RunFFN(team.context, x.ReadOnly(), block.view, exact.view, nullptr);
  RunListedFFN(team.context, x.ReadOnly(), block.view, lists.view, listed.view, nullptr);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const RowsView<const float> token{x.view.Row(t), 1, o.hidden_size, o.hidden_size};
    const std::span<const std::int32_t> ids = lists.view.Of(t);
    const std::array<std::int64_t, 2> offsets = {0, std::ssize(ids)};
    TestRows alone(1, o.hidden_size);
    const auto is_same = [&](const TestRows& batch) {
      return std::memcmp(batch.view.Row(t), alone.view.data,
                         static_cast<std::size_t>(o.hidden_size) * sizeof(float)) == 0;
    };
    RunFFN(team.context, token, block.view, alone.view, nullptr);
    REQUIRE_MESSAGE(is_same(exact), o.Name(), ": a batch changed bits");
    RunListedFFN(team.context, token, block.view, {offsets.data(), ids.data(), 1}, alone.view,
                 nullptr);
    REQUIRE_MESSAGE(is_same(listed), o.Name(), ": a batch of lists changed bits");
  }
}

}  // namespace

TEST_CASE("FFNOverListedNeuronsZeroesTheOthers") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kKinds) {
      for (int bits = 0; bits < 4; ++bits) {
        FFNOptions o;
        o.kernels = table;
        o.kind = kind;
        o.is_gated = (bits & 1) != 0;
        o.is_transposed = (bits & 2) != 0;
        for (const std::int64_t num_tokens : {1, 3, 19}) CheckListed(o, num_tokens);
      }
    }
  }
}

TEST_CASE("FFNOfABatchHasTheBitsOfSingleTokens") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : {Format::kF32, Format::kF16, Format::kQ4_0, Format::kQ8_0}) {
      for (int bits = 0; bits < 4; ++bits) {
        FFNOptions o;
        o.kernels = table;
        o.kind = ActivationKind::kDRelu;
        o.gate = o.rest = format;
        o.is_gated = (bits & 1) != 0;
        o.is_transposed = (bits & 2) != 0;
        o.hidden_size = 256;
        o.intermediate_size = 2112;  // uneven ranges
        CheckBatch(o, kMaxBatchTokens);
      }
    }
  }
}

TEST_CASE("FFNReadsTheRowsOfABatchOnce") {
  FFNOptions o;
  Random random(8);
  const FFNBlock block(o, random);
  const TestRows one(1, o.hidden_size, random);
  TestRows same(5, o.hidden_size);
  for (std::int64_t t = 0; t < 5; ++t) {
    std::copy_n(one.view.Row(0), o.hidden_size, same.view.Row(t));
  }
  TestTeam team(2);
  TestRows out(5, o.hidden_size);
  FFNStats first, batch;
  RunFFN(team.context, one.ReadOnly(), block.view, {out.view.data, 1, o.hidden_size, 0}, &first);
  RunFFN(team.context, same.ReadOnly(), block.view, out.view, &batch);
  REQUIRE_MESSAGE(first.bytes_read == batch.bytes_read, "a row was read more than once");
  REQUIRE_MESSAGE(5 * first.active == batch.active, "wrong number of active neurons");
  REQUIRE_MESSAGE(5 * first.predicted == batch.predicted, "wrong number of predicted neurons");
}

}  // namespace powerinfer::testing
