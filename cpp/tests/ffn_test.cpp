// RunFFN on every table: all activations, gated or not, down plain or transposed, dense or exact.
#include "sparse/ffn.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::array<ActivationKind, 6> kKinds = {ActivationKind::kSilu,    ActivationKind::kGelu,
                                                  ActivationKind::kRelu,    ActivationKind::kDRelu,
                                                  ActivationKind::kFatRelu, ActivationKind::kRelu2};

struct Options {
  ActivationKind kind = ActivationKind::kRelu;
  bool is_gated = true;
  bool is_transposed = true;
  bool is_exact = true;
  Format gate = Format::kF32;
  Format rest = Format::kF32;
  std::int64_t hidden_size = 36;
  std::int64_t intermediate_size = 612;

  std::string Name() const {
    return std::string(Kernels().name) + " " + std::string(InfoOf(rest).name) + " activation " +
           std::to_string(static_cast<int>(kind)) + (is_gated ? " gated" : " ungated") +
           (is_transposed ? " transposed" : " plain") + (is_exact ? " exact" : " dense");
  }
};

void Shift(std::vector<float>* bias, float by) {
  for (float& value : *bias) value += by;
}

/// A block with random weights and biases; the gate's bias makes about a tenth fire.
struct Block {
  std::optional<TestMatrix> gate;
  TestMatrix up;
  TestMatrix down;
  std::vector<float> gate_bias, up_bias, down_bias;
  FFNView view;

  Block(const Options& o, Random& random)
      : up(o.rest, o.intermediate_size, o.hidden_size, random),
        down(o.rest, o.is_transposed ? o.intermediate_size : o.hidden_size,
             o.is_transposed ? o.hidden_size : o.intermediate_size, random),
        gate_bias(RandomFloats(o.intermediate_size, random)),
        up_bias(RandomFloats(o.intermediate_size, random)),
        down_bias(RandomFloats(o.hidden_size, random)) {
    if (o.is_gated) gate.emplace(o.gate, o.intermediate_size, o.hidden_size, random);
    Shift(o.is_gated ? &gate_bias : &up_bias, -4.0F);
    if (o.is_gated) view.gate = gate->view;
    view.up = up.view;
    view.down = down.view;
    view.gate_bias = o.is_gated ? gate_bias.data() : nullptr;
    view.up_bias = up_bias.data();
    view.down_bias = down_bias.data();
    view.activation = {o.kind, o.kind == ActivationKind::kFatRelu ? 0.25F : 0.0F};
    view.is_down_transposed = o.is_transposed;
    view.is_exact_sparse = o.is_exact;
  }
};

double Apply(const Activation& activation, double z) {
  switch (activation.kind) {
    case ActivationKind::kSilu:
      return z / (1.0 + std::exp(-z));
    case ActivationKind::kGelu:
      return 0.5 * z * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z)));
    case ActivationKind::kRelu:
    case ActivationKind::kDRelu:
      return std::max(z, 0.0);
    case ActivationKind::kFatRelu:
      return z >= static_cast<double>(activation.threshold) ? z : 0.0;
    case ActivationKind::kRelu2:
      return std::max(z, 0.0) * std::max(z, 0.0);
  }
  return z;
}

double Row(const TestMatrix& matrix, std::int64_t row, const float* x, const float* bias) {
  double sum = static_cast<double>(bias[row]);
  for (std::int64_t i = 0; i < matrix.view.columns; ++i) {
    sum += matrix.At(row, i) * static_cast<double>(x[i]);
  }
  return sum;
}

struct Expected {
  std::vector<double> out;
  std::vector<double> magnitude;  // sum of |terms|, what errors are relative to
  std::int64_t active = 0;
};

using IsListed = std::function<bool(std::int64_t)>;

/// Neurons that are not listed count as zero.
Expected Reference(const Block& block, const float* x, const IsListed& is_listed = nullptr) {
  const FFNView& view = block.view;
  const std::int64_t hidden_size = view.HiddenSize();
  Expected result;
  result.out.assign(block.down_bias.begin(), block.down_bias.end());
  result.magnitude.assign(static_cast<std::size_t>(hidden_size), 1.0);
  for (std::int64_t i = 0; i < view.IntermediateSize(); ++i) {
    if (is_listed && !is_listed(i)) continue;
    const double u = Row(block.up, i, x, block.up_bias.data());
    const double z = view.HasGate() ? Row(*block.gate, i, x, block.gate_bias.data()) : u;
    const bool clips_up = view.HasGate() && view.activation.kind == ActivationKind::kDRelu;
    double h = Apply(view.activation, z);
    if (view.HasGate()) h *= clips_up ? std::max(u, 0.0) : u;
    result.active += h != 0.0 || !view.activation.IsSparse() ? 1 : 0;
    if (h == 0.0) continue;
    for (std::int64_t c = 0; c < hidden_size; ++c) {
      const double term = h * (view.is_down_transposed ? block.down.At(i, c) : block.down.At(c, i));
      result.out[static_cast<std::size_t>(c)] += term;
      result.magnitude[static_cast<std::size_t>(c)] += std::fabs(term);
    }
  }
  return result;
}

/// Full-precision formats: f32 sums, or bfloat16 with low parts. Block formats: x and h in int8,
/// which moves every neuron's value by about a percent.
double Tolerance(const Options& o) {
  return InfoOf(o.rest).uses_int8_activations() || InfoOf(o.gate).uses_int8_activations() ? 4e-2
                                                                                          : 2e-4;
}

void CheckRow(const Options& o, const Expected& expected, const float* out,
              const std::string& where) {
  for (std::size_t c = 0; c < expected.out.size(); ++c) {
    const double error = std::fabs(static_cast<double>(out[c]) - expected.out[c]);
    Check(error <= Tolerance(o) * expected.magnitude[c],
          o.Name() + ": " + where + " column " + std::to_string(c) + " is off by " +
              std::to_string(error / expected.magnitude[c]));
  }
}

void CheckBlock(const Options& o, std::int64_t num_tokens) {
  Random random(static_cast<std::uint64_t>(num_tokens * 10 + static_cast<int>(o.kind)));
  const Block block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    Workspace workspace;
    TestRows out(num_tokens, o.hidden_size);
    FFNStats stats;
    RunFFN(team, workspace, x.ReadOnly(), block.view, out.view, &stats);
    if (threads > 1) {
      Check(SameBits(before, out.data), o.Name() + ": the number of threads changed bits");
      continue;
    }
    before = out.data;
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const Expected expected = Reference(block, x.view.Row(t));
      active += expected.active;
      CheckRow(o, expected, out.view.Row(t), "token " + std::to_string(t));
    }
    Check(stats.total == num_tokens * o.intermediate_size, o.Name() + ": wrong total");
    if (Tolerance(o) < 1e-3) {
      Check(stats.active == active, o.Name() + ": " + std::to_string(stats.active) +
                                        " active, expected " + std::to_string(active));
    }
  }
}

/// Bytes that the exact path of one token must read, from the reference's own counts.
std::int64_t ExactBytes(const Block& block, const float* x) {
  const FFNView& view = block.view;
  std::int64_t deciding = 0;
  for (std::int64_t i = 0; i < view.IntermediateSize(); ++i) {
    deciding += Row(*block.gate, i, x, block.gate_bias.data()) > 0.0 ? 1 : 0;
  }
  return view.gate.NumBytes() + deciding * view.up.row_bytes +
         Reference(block, x).active * view.down.row_bytes;
}

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

void CheckListed(const Options& o, std::int64_t num_tokens) {
  Random random(static_cast<std::uint64_t>(num_tokens));
  const Block block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  const TestLists lists(num_tokens, o.intermediate_size, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    Workspace workspace;
    TestRows out(num_tokens, o.hidden_size);
    FFNStats stats;
    RunListedFFN(team, workspace, x.ReadOnly(), block.view, lists.view, out.view, &stats);
    Check(threads == 1 || SameBits(before, out.data), o.Name() + ": threads changed bits");
    before = out.data;
    std::int64_t active = 0;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      const auto listed = lists.view.Of(t);
      const Expected expected = Reference(block, x.view.Row(t), [&](std::int64_t i) {
        return std::binary_search(listed.begin(), listed.end(), static_cast<std::int32_t>(i));
      });
      active += expected.active;
      CheckRow(o, expected, out.view.Row(t), "listed neurons of token " + std::to_string(t));
    }
    Check(stats.active == active, o.Name() + ": wrong number of active neurons");
    Check(stats.predicted == std::ssize(lists.ids), o.Name() + ": wrong number listed");
    Check(stats.total == num_tokens * o.intermediate_size, o.Name() + ": wrong total");
  }
}

/// Every token of a batch against the same token alone, exact and over lists.
void CheckBatch(const Options& o, std::int64_t num_tokens) {
  Random random(7);
  const Block block(o, random);
  const TestRows x(num_tokens, o.hidden_size, random);
  const TestLists lists(num_tokens, o.intermediate_size, random);
  ThreadTeam team(2);
  Workspace workspace;
  TestRows exact(num_tokens, o.hidden_size);
  TestRows listed(num_tokens, o.hidden_size);
  RunFFN(team, workspace, x.ReadOnly(), block.view, exact.view, nullptr);
  RunListedFFN(team, workspace, x.ReadOnly(), block.view, lists.view, listed.view, nullptr);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    const RowsView<const float> token{x.view.Row(t), 1, o.hidden_size, o.hidden_size};
    const std::span<const std::int32_t> ids = lists.view.Of(t);
    const std::array<std::int64_t, 2> offsets = {0, std::ssize(ids)};
    TestRows alone(1, o.hidden_size);
    const auto is_same = [&](const TestRows& batch) {
      return std::memcmp(batch.view.Row(t), alone.view.data,
                         static_cast<std::size_t>(o.hidden_size) * sizeof(float)) == 0;
    };
    RunFFN(team, workspace, token, block.view, alone.view, nullptr);
    Check(is_same(exact), o.Name() + ": a batch changed bits");
    RunListedFFN(team, workspace, token, block.view, {offsets.data(), ids.data(), 1}, alone.view,
                 nullptr);
    Check(is_same(listed), o.Name() + ": a batch of lists changed bits");
  }
}

}  // namespace

TEST(FFNMatchesDoublePrecisionForEveryActivationAndLayout) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const ActivationKind kind : kKinds) {
      for (int bits = 0; bits < 8; ++bits) {
        Options o;
        o.kind = kind;
        o.is_gated = (bits & 1) != 0;
        o.is_transposed = (bits & 2) != 0;
        o.is_exact = (bits & 4) != 0;
        for (const std::int64_t num_tokens : {1, 3, 13}) CheckBlock(o, num_tokens);
      }
    }
  }
}

TEST(FFNMatchesDoublePrecisionForEveryFormat) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const Format format : AllFormats()) {
      if (format == Format::kSign) continue;  // multiplies signs: for predictors only
      Options o;
      o.kind = ActivationKind::kDRelu;
      o.gate = format;
      o.rest = format == Format::kQ4_0Superblock ? Format::kQ4_0 : format;
      o.hidden_size = 256;
      o.intermediate_size = 512;
      for (const bool is_exact : {false, true}) {
        o.is_exact = is_exact;
        for (const std::int64_t num_tokens : {1, 9, 41}) CheckBlock(o, num_tokens);
      }
    }
  }
}

TEST(FFNExactReadsOnlyRowsOfFiringNeurons) {
  Options o;
  o.kind = ActivationKind::kDRelu;
  Random random(3);
  const Block block(o, random);
  const TestRows x(1, o.hidden_size, random);
  ThreadTeam team(2);
  Workspace workspace;
  TestRows out(1, o.hidden_size);
  FFNStats stats;
  RunFFN(team, workspace, x.ReadOnly(), block.view, out.view, &stats);
  Check(stats.active > 0 && stats.active < o.intermediate_size / 3, "the case is not sparse");
  Check(stats.bytes_read == ExactBytes(block, x.view.Row(0)), "wrong bytes read");
}

TEST(FFNOverListedNeuronsZeroesTheOthers) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const ActivationKind kind : kKinds) {
      for (int bits = 0; bits < 4; ++bits) {
        Options o;
        o.kind = kind;
        o.is_gated = (bits & 1) != 0;
        o.is_transposed = (bits & 2) != 0;
        for (const std::int64_t num_tokens : {1, 3, 19}) CheckListed(o, num_tokens);
      }
    }
  }
}

TEST(FFNOfABatchHasTheBitsOfSingleTokens) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const Format format : {Format::kF32, Format::kF16, Format::kQ4_0, Format::kQ8_0}) {
      for (int bits = 0; bits < 4; ++bits) {
        Options o;
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

TEST(FFNReadsTheRowsOfABatchOnce) {
  Options o;
  Random random(8);
  const Block block(o, random);
  const TestRows one(1, o.hidden_size, random);
  TestRows same(5, o.hidden_size);
  for (std::int64_t t = 0; t < 5; ++t) {
    std::copy_n(one.view.Row(0), o.hidden_size, same.view.Row(t));
  }
  ThreadTeam team(2);
  Workspace workspace;
  TestRows out(5, o.hidden_size);
  FFNStats first, batch;
  RunFFN(team, workspace, one.ReadOnly(), block.view, {out.view.data, 1, o.hidden_size, 0}, &first);
  RunFFN(team, workspace, same.ReadOnly(), block.view, out.view, &batch);
  Check(first.bytes_read == batch.bytes_read, "a row was read more than once");
  Check(5 * first.active == batch.active, "wrong number of active neurons");
  Check(5 * first.predicted == batch.predicted, "wrong number of predicted neurons");
}

TEST(FFNKeepsNaN) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const ActivationKind kind : kKinds) {
      for (const std::int64_t num_tokens : {1, 13}) {
        for (const bool is_exact : {false, true}) {
          Options o;
          o.kind = kind;
          o.is_exact = is_exact;
          Random random(5);
          const Block block(o, random);
          TestRows x(num_tokens, o.hidden_size, random);
          x.view.Row(0)[1] = std::numeric_limits<float>::quiet_NaN();
          TestRows out(num_tokens, o.hidden_size);
          ThreadTeam team(2);
          Workspace workspace;
          RunFFN(team, workspace, x.ReadOnly(), block.view, out.view, nullptr);
          Check(std::isnan(out.view.Row(0)[0]), o.Name() + ": NaN was lost");
          Check(num_tokens == 1 || std::isfinite(out.view.Row(1)[0]), o.Name() + ": NaN leaked");
        }
      }
    }
  }
}

TEST(FFNActivationsAreAccurate) {
  for (const KernelTable* table : AvailableKernels()) {
    const KernelChoice choice(table->name);
    for (const ActivationKind kind : {ActivationKind::kSilu, ActivationKind::kGelu}) {
      const Activation activation{kind, 0.0F};
      std::vector<float> inputs;
      for (float z = -100.0F; z < 100.0F; z += 0.0437F) inputs.push_back(z);
      std::vector<float> values = inputs;
      Activate(activation, std::ssize(values), values.data(), nullptr);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double expected = Apply(activation, static_cast<double>(inputs[i]));
        Check(std::fabs(static_cast<double>(values[i]) - expected) <=
                  1e-6 * std::fabs(expected) + 2e-6,
              "activation of " + std::to_string(inputs[i]) + " is " + std::to_string(values[i]));
      }
    }
  }
}

}  // namespace powerinfer::testing
