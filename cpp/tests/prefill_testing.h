// Helpers for tests of RunPrefillFFN: blocks, inputs, lists, and plain loops to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "sparse/ffn.h"
#include "sparse/prefill.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing::prefill {

struct Options {
  const KernelTable* kernels = &BestKernels();
  ActivationKind kind = ActivationKind::kRelu;
  bool is_cut = false;
  bool is_gated = true;
  bool is_transposed = true;
  Format format = Format::kF32;
  std::int64_t num_tokens = 67;
  std::int64_t hidden_size = 36;
  std::int64_t intermediate_size = 612;

  std::string Name() const {
    return std::string(kernels->name) + " " + std::string(InfoOf(format).name) + " activation " +
           std::to_string(static_cast<int>(kind)) + (is_gated ? " gated" : " ungated") +
           (is_transposed ? " transposed" : " plain") + (is_cut ? " cut" : "");
  }
};

// Shares that force a way: pairs alone, pairs after the whole deciding matrix, everything for every
// token, and a mixture.
inline constexpr SkipShares kListed = {1.0, 1.0};
inline constexpr SkipShares kSkip = {-1.0, 1.0};
inline constexpr SkipShares kDense = {-1.0, -1.0};
inline constexpr SkipShares kMixed = {0.3, 0.15};

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
    if (o.is_cut) view.activation = {o.kind, 0.75F, -4.25F, -3.75F};
    view.is_down_transposed = o.is_transposed;
    view.is_exact_sparse = true;
  }
  double DownAt(std::int64_t neuron, std::int64_t column) const {
    return view.is_down_transposed ? down.At(neuron, column) : down.At(column, neuron);
  }
};

inline double Activated(const Activation& activation, double z) {
  bool fires = true;
  VisitFires(activation, [&](const auto& test) { fires = test(static_cast<float>(z)); });
  if (activation.IsCut() && !fires) return 0.0;
  if (activation.kind == ActivationKind::kSilu) return z / (1.0 + std::exp(-z));
  if (activation.kind == ActivationKind::kFatRelu) {
    return z >= static_cast<double>(activation.threshold) ? z : 0.0;
  }
  const double relu = std::max(z, 0.0);
  return activation.kind == ActivationKind::kRelu2 ? relu * relu : relu;
}

inline double Row(const TestMatrix& matrix, std::int64_t row, const float* x, float bias) {
  double sum = static_cast<double>(bias);
  for (std::int64_t i = 0; i < matrix.view.columns; ++i) {
    sum += matrix.At(row, i) * static_cast<double>(x[i]);
  }
  return sum;
}

/// Neuron i's value for one token.
inline double Value(const Block& block, std::int64_t i, const float* x) {
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

inline Errors ErrorsOf(const Block& block, const TestRows& x, const NeuronIds* mask,
                       const TestRows& out) {
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

inline FFNStats RunOnce(const KernelTable& kernels, std::int32_t num_threads, const TestRows& x,
                        const Block& block, const NeuronIds* mask, TestRows& out,
                        const SkipShares& shares = kListed) {
  TestTeam team(num_threads, kernels, RowKind::kPrompt);
  FFNStats stats;
  RunPrefillFFN(team.context, x.ReadOnly(), block.view, mask, out.view, &stats, shares);
  return stats;
}

inline bool SameRow(const TestRows& a, std::int64_t row_a, const TestRows& b, std::int64_t row_b) {
  const auto bytes = static_cast<std::size_t>(a.view.columns) * sizeof(float);
  return std::memcmp(a.view.Row(row_a), b.view.Row(row_b), bytes) == 0;
}

}  // namespace powerinfer::testing::prefill
