// Bits of neurons that fire: setting and counting them, and those of blocks in every way that a
// prompt's tokens take, against the values that the blocks return.
#include "sparse/fired_bits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "sparse/experts.h"
#include "tests/experts_testing.h"
#include "tests/prefill_testing.h"

namespace powerinfer::testing {
namespace {

namespace prefill = powerinfer::testing::prefill;

/// Zeroed rows of bits for some tokens.
struct TestBits {
  std::vector<std::uint8_t> data;
  std::int64_t row_bytes;

  TestBits(std::int64_t num_tokens, std::int64_t num_neurons)
      : data(static_cast<std::size_t>(num_tokens * ((num_neurons + 7) / 8))),
        row_bytes((num_neurons + 7) / 8) {}
  FiredBits View() { return {data.data(), row_bytes, nullptr, 0}; }
  bool Has(std::int64_t token, std::int64_t neuron) const {
    return (data[static_cast<std::size_t>(token * row_bytes + neuron / 8)] >> (neuron % 8) & 1) ==
           1;
  }
  std::int64_t Count() const {
    std::int64_t count = 0;
    for (const std::uint8_t byte : data) count += std::popcount(byte);
    return count;
  }
};

/// Values of which about half are zeros of either sign, and one is NaN.
std::vector<float> Values(std::int64_t count, Random& random) {
  std::vector<float> values = RandomFloats(count, random);
  for (float& value : values) {
    if (value > -0.5F && value < 0.5F) value = value < 0.0F ? -0.0F : 0.0F;
  }
  values[static_cast<std::size_t>(count / 2)] = std::numeric_limits<float>::quiet_NaN();
  values.front() = std::numeric_limits<float>::denorm_min();
  return values;
}

/// f32 down that returns a token's values: hidden_size is at least the number of neurons.
struct Identity {
  std::vector<float> data;
  MatrixView view;

  Identity(std::int64_t num_neurons, std::int64_t hidden_size, bool is_transposed)
      : data(static_cast<std::size_t>(num_neurons * hidden_size)) {
    const std::int64_t columns = is_transposed ? hidden_size : num_neurons;
    for (std::int64_t i = 0; i < num_neurons; ++i) {
      data[static_cast<std::size_t>(i * (columns + 1))] = 1.0F;
    }
    view = {Format::kF32, reinterpret_cast<const std::uint8_t*>(data.data()),
            is_transposed ? num_neurons : hidden_size, columns, columns * 4};
  }
  Identity(const Identity&) = delete;
  Identity& operator=(const Identity&) = delete;
};

/// Every bit is set exactly where a number that was returned is not zero.
void CheckBits(const TestBits& bits, const TestRows& out, std::int64_t num_neurons,
               const std::string& name) {
  std::int64_t count = 0;
  std::int64_t num_wrong = 0;
  for (std::int64_t t = 0; t < out.view.rows; ++t) {
    for (std::int64_t i = 0; i < num_neurons; ++i) {
      const bool fires = out.view.Row(t)[i] != 0.0F;
      count += fires ? 1 : 0;
      num_wrong += bits.Has(t, i) != fires ? 1 : 0;
    }
  }
  REQUIRE_MESSAGE((num_wrong == 0 && count > 0), name, ": ", num_wrong, " wrong bits, ", count,
                  " neurons fire");
  REQUIRE_MESSAGE(bits.Count() == count, name, ": bits of no neuron");
}

void CheckPrefill(const prefill::Options& options, const SkipShares& shares, const NeuronIds* mask,
                  Random& random) {
  const std::string name = options.Name() + (mask != nullptr ? " masked" : "") + ", shares " +
                           std::to_string(shares.listed) + " " + std::to_string(shares.firing);
  prefill::Block block(options, random);
  const Identity down(options.intermediate_size, options.hidden_size, options.is_transposed);
  block.view.down = down.view;
  block.view.down_bias = nullptr;
  const prefill::Inputs x(options, random);
  TestRows plain(options.num_tokens, options.hidden_size);
  prefill::RunOnce(*options.kernels, 2, x, block, mask, plain, shares);
  for (const std::int32_t num_threads : {1, 2, 5}) {
    TestTeam team(num_threads, *options.kernels, RowKind::kPrompt);
    TestRows out(options.num_tokens, options.hidden_size);
    TestBits bits(options.num_tokens, options.intermediate_size);
    RunPrefillFFN(team.context, x.ReadOnly(), block.view, mask, out.view, nullptr, shares,
                  bits.View());
    REQUIRE_MESSAGE(std::memcmp(out.data.data(), plain.data.data(), out.data.size() * 4) == 0, name,
                    ": bits of the output");
    CheckBits(bits, out, options.intermediate_size, name);
  }
}

constexpr std::array<ActivationKind, 4> kSparseKinds = {
    ActivationKind::kRelu, ActivationKind::kDRelu, ActivationKind::kFatRelu,
    ActivationKind::kRelu2};

}  // namespace

TEST_CASE("FiredBitsAreSetAtAnyPlace") {
  Random random(1);
  for (std::int64_t first = 0; first < 19; ++first) {
    for (const std::int64_t count : {1, 7, 8, 9, 63, 64, 65, 128, 203}) {
      const std::vector<float> values = Values(count, random);
      // A set bit before and one after must stay, and bytes beyond must not be touched.
      const std::int64_t num_neurons = first + count + 1;
      TestBits bits(3, num_neurons);
      FiredBits view = bits.View();
      const float one = 1.0F;
      for (const std::int64_t place : {std::max<std::int64_t>(0, first - 1), first + count}) {
        FiredBits single = view;
        single.first_neuron = place;
        single.Set(1, &one, 1);
      }
      view.first_neuron = first;
      view.Set(1, values.data(), count);
      for (std::int64_t i = 0; i < num_neurons; ++i) {
        const bool is_own = i >= first && i < first + count;
        const bool fires = is_own ? values[static_cast<std::size_t>(i - first)] != 0.0F
                                  : i == first - 1 || i == first + count;
        REQUIRE_MESSAGE(bits.Has(1, i) == (fires || (first == 0 && i == 0)), first, " ", count, " ",
                        i);
        REQUIRE_MESSAGE((!bits.Has(0, i) && !bits.Has(2, i)), "rows of others");
      }
    }
  }
}

TEST_CASE("FiredBitsOfListedNeurons") {
  Random random(2);
  const std::vector<float> values = Values(60, random);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 60; ++i) ids.push_back(3 * i + i % 2);
  const std::vector<std::int32_t> tokens = {2, 0};
  TestBits bits(3, 200);
  bits.View().Part(tokens.data(), 11).SetListed(0, ids.data(), values.data(), 60);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    REQUIRE_MESSAGE(bits.Has(2, 11 + ids[i]) == (values[i] != 0.0F), "neuron ", ids[i]);
    count += values[i] != 0.0F ? 1 : 0;
  }
  REQUIRE_MESSAGE(bits.Count() == count, "other bits");
}

TEST_CASE("FiredBitsAreCounted") {
  Random random(3);
  for (const std::int64_t num_neurons : {1, 8, 61, 64, 65, 300}) {
    TestBits bits(5, num_neurons);
    std::vector<std::int64_t> expected(static_cast<std::size_t>(num_neurons), 10);
    std::vector<std::int64_t> counts = expected;
    for (std::int64_t t = 0; t < 5; ++t) {
      const std::vector<float> values = Values(num_neurons, random);
      bits.View().Set(t, values.data(), num_neurons);
      for (std::size_t i = 0; i < values.size(); ++i) expected[i] += values[i] != 0.0F ? 1 : 0;
    }
    CountFired(bits.data.data(), 5, bits.row_bytes, counts.data());
    REQUIRE_MESSAGE(counts == expected, num_neurons, " neurons");
  }
}

TEST_CASE("FiredBitsOfPrefillAreWhereValuesAreNotZero") {
  Random random(4);
  for (const KernelTable* table : AvailableKernels()) {
    for (const ActivationKind kind : kSparseKinds) {
      for (int flags = 0; flags < 4; ++flags) {
        prefill::Options options;
        options.kernels = table;
        options.kind = kind;
        options.is_gated = (flags & 1) != 0;
        options.is_transposed = (flags & 2) != 0;
        options.num_tokens = 33;
        options.hidden_size = 224;
        options.intermediate_size = 203;
        const prefill::Lists lists(options.num_tokens, options.intermediate_size);
        const NeuronIds listed = lists.View();
        for (const SkipShares& shares :
             {prefill::kListed, prefill::kSkip, prefill::kDense, prefill::kMixed}) {
          CheckPrefill(options, shares, nullptr, random);
          CheckPrefill(options, shares, &listed, random);
        }
      }
    }
  }
}

TEST_CASE("FiredBitsOfSeveralBlocksOfTokens") {
  Random random(5);
  prefill::Options options;
  options.num_tokens = 530;
  options.hidden_size = 96;
  options.intermediate_size = 90;
  options.kind = ActivationKind::kDRelu;
  CheckPrefill(options, prefill::kMixed, nullptr, random);
}

TEST_CASE("FiredBitsOfExperts") {
  Random random(6);
  for (const KernelTable* table : AvailableKernels()) {
    for (const bool is_exact : {true, false}) {
      ExpertsOptions o;
      o.ffn.kernels = table;
      o.ffn.kind = ActivationKind::kRelu;
      o.ffn.is_exact = is_exact;
      o.ffn.is_transposed = true;
      o.ffn.intermediate_size = 37;
      o.ffn.hidden_size = 192;
      ExpertsBlock block(o, random);
      const std::int64_t num_neurons = o.ffn.NumNeurons();
      const Identity down(num_neurons, o.ffn.hidden_size, true);
      block.view.down = down.view;
      block.view.down_bias = nullptr;
      const TestRows x(45, o.ffn.hidden_size, random);
      TestRows routed(45, o.ffn.hidden_size, random);
      // Small logits: no weight is so small that a product with it is zero.
      for (float& value : routed.data) value *= 0.01F;
      for (const std::int32_t num_threads : {1, 3}) {
        TestTeam team(num_threads, *table, RowKind::kPrompt);
        TestRows plain(45, o.ffn.hidden_size);
        TestRows out(45, o.ffn.hidden_size);
        TestBits bits(45, num_neurons);
        RunExperts(team.context, x.ReadOnly(), routed.ReadOnly(), block.view, {}, plain.view,
                   nullptr);
        RunExperts(team.context, x.ReadOnly(), routed.ReadOnly(), block.view, {}, out.view, nullptr,
                   bits.View());
        REQUIRE_MESSAGE(std::memcmp(out.data.data(), plain.data.data(), out.data.size() * 4) == 0,
                        o.Name(), ": bits of the output");
        CheckBits(bits, out, num_neurons, o.Name());
      }
    }
  }
}

}  // namespace powerinfer::testing
