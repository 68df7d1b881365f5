// RunPrefillFFN on every table: pairs found, masked and multiplied, against plain loops, and a
// token's bits whatever stands beside it.
#include "sparse/prefill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "sparse/ffn.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

struct Options {
  const KernelTable* kernels = &BestKernels();
  ActivationKind kind = ActivationKind::kRelu;
  bool is_gated = true;
  bool is_transposed = true;
  Format format = Format::kF32;
  std::int64_t num_tokens = 67;
  std::int64_t hidden_size = 36;
  std::int64_t intermediate_size = 612;

  std::string Name() const {
    return std::string(kernels->name) + " " + std::string(InfoOf(format).name) + " activation " +
           std::to_string(static_cast<int>(kind)) + (is_gated ? " gated" : " ungated") +
           (is_transposed ? " transposed" : " plain");
  }
};

// Shares that force a way: pairs alone, pairs behind the whole deciding matrix, everything for
// every token, and a mixture.
constexpr SkipShares kListed = {1.0, 1.0};
constexpr SkipShares kSkip = {-1.0, 1.0};
constexpr SkipShares kDense = {-1.0, -1.0};
constexpr SkipShares kMixed = {0.3, 0.15};

/// A block whose deciding bias makes most neurons fire for few tokens and every seventh for many.
struct Block {
  std::optional<TestMatrix> gate;
  TestMatrix up;
  TestMatrix down;
  std::vector<float> gate_bias, up_bias, down_bias;
  FFNView view;

  Block(const Options& o, Random& random)
      : up(o.format, o.intermediate_size, o.hidden_size, random),
        down(o.format, o.is_transposed ? o.intermediate_size : o.hidden_size,
             o.is_transposed ? o.hidden_size : o.intermediate_size, random),
        gate_bias(RandomFloats(o.intermediate_size, random)),
        up_bias(RandomFloats(o.intermediate_size, random)),
        down_bias(RandomFloats(o.hidden_size, random)) {
    if (o.is_gated) gate.emplace(o.format, o.intermediate_size, o.hidden_size, random);
    std::vector<float>& deciding = o.is_gated ? gate_bias : up_bias;
    const TestMatrix& matrix = o.is_gated ? *gate : up;
    for (std::int64_t i = 0; i < o.intermediate_size; ++i) {
      double sum = 0.0;
      for (std::int64_t c = 0; c < o.hidden_size; ++c) sum += std::pow(matrix.At(i, c), 2.0);
      const double deviation = std::sqrt(sum / 3.0);  // x is uniform in [-1, 1)
      const double shift = i % 7 == 0 ? 0.5 : -2.0;
      deciding[static_cast<std::size_t>(i)] = static_cast<float>(shift * deviation);
    }
    if (o.is_gated) view.gate = gate->view;
    view.up = up.view;
    view.down = down.view;
    view.gate_bias = o.is_gated ? gate_bias.data() : nullptr;
    view.up_bias = up_bias.data();
    view.down_bias = down_bias.data();
    view.activation = {o.kind, o.kind == ActivationKind::kFatRelu ? 0.25F : 0.0F};
    view.is_down_transposed = o.is_transposed;
    view.is_exact_sparse = true;
  }
  double DownAt(std::int64_t neuron, std::int64_t column) const {
    return view.is_down_transposed ? down.At(neuron, column) : down.At(column, neuron);
  }
};

double Activated(const Activation& activation, double z) {
  if (activation.kind == ActivationKind::kSilu) return z / (1.0 + std::exp(-z));
  if (activation.kind == ActivationKind::kFatRelu) {
    return z >= static_cast<double>(activation.threshold) ? z : 0.0;
  }
  const double relu = std::max(z, 0.0);
  return activation.kind == ActivationKind::kRelu2 ? relu * relu : relu;
}

double Row(const TestMatrix& matrix, std::int64_t row, const float* x, float bias) {
  double sum = static_cast<double>(bias);
  for (std::int64_t i = 0; i < matrix.view.columns; ++i) {
    sum += matrix.At(row, i) * static_cast<double>(x[i]);
  }
  return sum;
}

/// Neuron i's value for one token.
double Value(const Block& block, std::int64_t i, const float* x) {
  const FFNView& view = block.view;
  const auto place = static_cast<std::size_t>(i);
  const double u = Row(block.up, i, x, block.up_bias[place]);
  if (!view.HasGate()) return Activated(view.activation, u);
  const double z = Row(*block.gate, i, x, block.gate_bias[place]);
  const bool clips = view.activation.kind == ActivationKind::kDRelu;
  return Activated(view.activation, z) * (clips ? std::max(u, 0.0) : u);
}

/// Tokens of which every second is three times as large: far more neurons fire for these.
struct Inputs : TestRows {
  Inputs(const Options& o, Random& random) : TestRows(o.num_tokens, o.hidden_size, random) {
    for (std::int64_t t = 1; t < view.rows; t += 2) {
      for (std::int64_t c = 0; c < view.columns; ++c) view.Row(t)[c] *= 3.0F;
    }
  }
};

/// Every token's lists of ids: all neurons but those with (i + token) % 3 == 0; for tokens 3 and 4
/// of five every ninth and none.
struct Lists {
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;

  Lists(std::int64_t num_tokens, std::int64_t num_neurons) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t i = 0; i < num_neurons && t % 5 != 4; ++i) {
        const bool is_listed = t % 5 == 3 ? (i + t) % 9 == 0 : (i + t) % 3 != 0;
        if (is_listed) ids.push_back(static_cast<std::int32_t>(i));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  NeuronIds View() const {
    return {offsets.data(), ids.data(), static_cast<std::int64_t>(offsets.size()) - 1};
  }
};

struct Errors {
  double largest = 0.0;  ///< relative to the sum of magnitudes of an output's terms
  double pooled = 0.0;   ///< root of the squares of all errors over those of all outputs
};

Errors ErrorsOf(const Block& block, const TestRows& x, const NeuronIds* mask, const TestRows& out) {
  Errors errors;
  double squares = 0.0;
  double expected = 0.0;
  for (std::int64_t t = 0; t < x.view.rows; ++t) {
    std::vector<double> sums(block.down_bias.begin(), block.down_bias.end());
    std::vector<double> magnitudes(sums.size(), 1.0);
    for (std::int64_t i = 0; i < block.view.IntermediateSize(); ++i) {
      if (mask != nullptr && !std::ranges::binary_search(mask->Of(t), i)) continue;
      const double value = Value(block, i, x.view.Row(t));
      for (std::size_t c = 0; c < sums.size(); ++c) {
        const double term = value * block.DownAt(i, static_cast<std::int64_t>(c));
        sums[c] += term;
        magnitudes[c] += std::fabs(term);
      }
    }
    for (std::size_t c = 0; c < sums.size(); ++c) {
      const auto got = static_cast<double>(out.view.Row(t)[c]);
      const double error =
          std::isfinite(got) ? std::fabs(got - sums[c]) : std::numeric_limits<double>::max();
      errors.largest = std::max(errors.largest, error / magnitudes[c]);
      squares += error * error;
      expected += sums[c] * sums[c];
    }
  }
  errors.pooled = std::sqrt(squares / expected);
  return errors;
}

FFNStats RunOnce(const KernelTable& kernels, std::int32_t num_threads, const TestRows& x,
                 const Block& block, const NeuronIds* mask, TestRows& out,
                 const SkipShares& shares = kListed) {
  TestTeam team(num_threads, kernels, RowKind::kPrompt);
  FFNStats stats;
  RunPrefillFFN(team.context, x.ReadOnly(), block.view, mask, out.view, &stats, shares);
  return stats;
}

void CheckShares(const Options& options, const Block& block, const TestRows& x,
                 const NeuronIds* mask, const SkipShares& shares) {
  const std::string name = options.Name() + (mask != nullptr ? " masked" : "") + ", shares " +
                           std::to_string(shares.listed) + " " + std::to_string(shares.firing);
  TestRows out(options.num_tokens, options.hidden_size);
  const FFNStats stats = RunOnce(*options.kernels, 1, x, block, mask, out, shares);
  const Errors errors = ErrorsOf(block, x, mask, out);
  // Formats in blocks may meet bfloat16, and what fires lies just above zero here.
  const bool is_rough = InfoOf(options.format).block_size > 1;
  const double error = is_rough ? errors.pooled : errors.largest;
  REQUIRE_MESSAGE(error < (is_rough ? 0.02 : 2e-4), name, ": error ", error);
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

bool SameRow(const TestRows& a, std::int64_t row_a, const TestRows& b, std::int64_t row_b) {
  const auto bytes = static_cast<std::size_t>(a.view.columns) * sizeof(float);
  return std::memcmp(a.view.Row(row_a), b.view.Row(row_b), bytes) == 0;
}

/// The same tokens with others beside them: `tokens` of x in one call.
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

/// A token's bits alone, in cuts, beside tokens that go another way and beside such as go its own.
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

constexpr std::array<ActivationKind, 4> kSparseKinds = {
    ActivationKind::kRelu, ActivationKind::kDRelu, ActivationKind::kFatRelu,
    ActivationKind::kRelu2};

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
      if (format >= Format::kQ4_0Superblock) continue;
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

TEST_CASE("PrefillTokenHasItsBitsWhateverStandsBesideIt") {
  Random random(21);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format > Format::kQ4_0Superblock) continue;  // of predictors
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
    REQUIRE_MESSAGE((num_skipping > 20 && num_dense > 20), "skipping ", num_skipping, ", dense ",
                    num_dense);
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
  const Options options;
  Block block(options, random);
  for (std::int64_t i = 0; i < options.intermediate_size; ++i) {
    if (i % 3 != 0) continue;
    block.gate_bias[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < options.num_tokens; ++t) {
    for (std::int32_t i = 1; i < options.intermediate_size; i += 3) ids.push_back(i);
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const NeuronIds mask{offsets.data(), ids.data(), options.num_tokens};
  const TestRows x(options.num_tokens, options.hidden_size, random);
  TestRows out(options.num_tokens, options.hidden_size);
  RunOnce(*options.kernels, 2, x, block, &mask, out);
  REQUIRE_MESSAGE(ErrorsOf(block, x, &mask, out).largest < 2e-4,
                  "pairs that are not listed count as zero");
}

}  // namespace powerinfer::testing
