// A random feed-forward block and its result in double precision.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sparse/ffn.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {

inline constexpr std::array<ActivationKind, 7> kKinds = {
    ActivationKind::kSilu,         ActivationKind::kGelu,    ActivationKind::kRelu,
    ActivationKind::kDRelu,        ActivationKind::kFatRelu, ActivationKind::kRelu2,
    ActivationKind::kClampedSwiGlu};

/// FatReLU with a threshold, silu and gelu cut where `is_cut`, other kinds as they are.
inline Activation TestActivation(ActivationKind kind, bool is_cut) {
  if (kind == ActivationKind::kFatRelu) return {kind, 0.25F};
  if (is_cut) return {kind, 0.75F, -4.25F, -3.5F};
  return {kind};
}

struct FFNOptions {
  const KernelTable* kernels = &BestKernels();
  ActivationKind kind = ActivationKind::kRelu;
  bool is_cut = false;
  bool is_gated = true;
  bool is_transposed = true;
  bool is_exact = true;
  Format gate = Format::kF32;
  Format rest = Format::kF32;
  std::int64_t hidden_size = 36;
  std::int64_t intermediate_size = 612;  // of one expert
  std::int64_t num_experts = 1;

  std::int64_t NumNeurons() const { return num_experts * intermediate_size; }
  std::string Name() const {
    return std::string(kernels->name) + " " + std::string(InfoOf(rest).name) + " activation " +
           std::to_string(static_cast<int>(kind)) + (is_gated ? " gated" : " ungated") +
           (is_transposed ? " transposed" : " plain") + (is_exact ? " exact" : " dense") +
           (is_cut ? " cut" : "");
  }
};

inline void Shift(std::vector<float>* bias, float by) {
  for (float& value : *bias) value += by;
}

/// A block with random weights and biases; the gate's bias makes about a tenth fire.
struct FFNBlock {
  std::optional<TestMatrix> gate;
  TestMatrix up;
  TestMatrix down;
  std::vector<float> gate_bias, up_bias, down_bias;
  FFNView view;

  FFNBlock(const FFNOptions& o, Random& random)
      : up(o.rest, o.NumNeurons(), o.hidden_size, random),
        down(o.rest, o.is_transposed ? o.NumNeurons() : o.num_experts * o.hidden_size,
             o.is_transposed ? o.hidden_size : o.intermediate_size, random),
        gate_bias(RandomFloats(o.NumNeurons(), random)),
        up_bias(RandomFloats(o.NumNeurons(), random)),
        down_bias(RandomFloats(o.num_experts * o.hidden_size, random)) {
    if (o.is_gated) gate.emplace(o.gate, o.NumNeurons(), o.hidden_size, random);
    Shift(o.is_gated ? &gate_bias : &up_bias, -4.0F);
    if (o.is_gated) view.gate = gate->view;
    view.up = up.view;
    view.down = down.view;
    view.gate_bias = o.is_gated ? gate_bias.data() : nullptr;
    view.up_bias = up_bias.data();
    view.down_bias = down_bias.data();
    view.activation = TestActivation(o.kind, o.is_cut);
    view.is_down_transposed = o.is_transposed;
    view.is_exact_sparse = o.is_exact;
  }
};

/// Of a cut function, whether z counts.
inline bool IsKept(const Activation& activation, double z) {
  const auto [begin, end] = std::pair<double, double>(activation.dip_begin, activation.dip_end);
  return z >= static_cast<double>(activation.threshold) || (begin <= z && z <= end);
}

inline double Apply(const Activation& activation, double z) {
  if (activation.IsCut() && !IsKept(activation, z)) return 0.0;
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
    case ActivationKind::kClampedSwiGlu:
      return std::min(z, 7.0) / (1.0 + std::exp(-1.702 * std::min(z, 7.0)));
  }
  return z;
}

/// The factor by which up multiplies the activation in a gated block.
inline double UpFactor(const Activation& activation, double u) {
  if (activation.kind == ActivationKind::kDRelu) return std::max(u, 0.0);
  if (activation.kind == ActivationKind::kClampedSwiGlu) return std::clamp(u, -7.0, 7.0) + 1.0;
  return u;
}

inline double Row(const TestMatrix& matrix, std::int64_t row, const float* x, const float* bias) {
  double sum = static_cast<double>(bias[row]);
  for (std::int64_t i = 0; i < matrix.view.columns; ++i) {
    sum += matrix.At(row, i) * static_cast<double>(x[i]);
  }
  return sum;
}

struct FFNResult {
  std::vector<double> out;
  std::vector<double> magnitude;  // sum of |terms|, to which errors are relative
  std::int64_t active = 0;
};

using IsListed = std::function<bool(std::int64_t)>;

/// Neurons that are not listed count as zero. In a mixture of experts, only one expert counts.
inline FFNResult Reference(const FFNBlock& block, const float* x,
                           const IsListed& is_listed = nullptr, std::int64_t expert = 0) {
  const FFNView& view = block.view;
  const std::int64_t hidden_size = view.HiddenSize();
  const std::int64_t first = expert * view.ExpertSize();
  FFNResult result;
  const auto bias = block.down_bias.begin() + expert * hidden_size;
  result.out.assign(bias, bias + hidden_size);
  result.magnitude.assign(static_cast<std::size_t>(hidden_size), 1.0);
  for (std::int64_t i = first; i < first + view.ExpertSize(); ++i) {
    if (is_listed && !is_listed(i)) continue;
    const double u = Row(block.up, i, x, block.up_bias.data());
    const double z = view.HasGate() ? Row(*block.gate, i, x, block.gate_bias.data()) : u;
    double h = Apply(view.activation, z);
    if (view.HasGate()) h *= UpFactor(view.activation, u);
    result.active += h != 0.0 || !view.activation.IsSparse() ? 1 : 0;
    if (h == 0.0) continue;
    for (std::int64_t c = 0; c < hidden_size; ++c) {
      const double term =
          h * (view.is_down_transposed ? block.down.At(i, c)
                                       : block.down.At(expert * hidden_size + c, i - first));
      result.out[static_cast<std::size_t>(c)] += term;
      result.magnitude[static_cast<std::size_t>(c)] += std::fabs(term);
    }
  }
  return result;
}

/// Full-precision formats: f32 sums, or bfloat16 with low parts; x and h rounded to bfloat16 in
/// prompts of BF16 weights (0.08 % seen). Block formats: x and h in int8, which moves every
/// neuron's value by about a percent, and by several where its terms cancel (4.5 seen among the 41
/// tokens of a prompt; decode is tested with fewer).
inline double Tolerance(const FFNOptions& o, RowKind rows) {
  const bool is_rounded =
      RoundsToBf16(*o.kernels, o.rest) || (o.is_gated && RoundsToBf16(*o.kernels, o.gate));
  if (rows == RowKind::kPrompt && is_rounded) return 5e-3;
  if (!InfoOf(o.rest).uses_int8_activations() && !InfoOf(o.gate).uses_int8_activations()) {
    return 2e-4;
  }
  return rows == RowKind::kPrompt ? 6e-2 : 4e-2;
}

inline void CheckRow(const FFNOptions& o, RowKind rows, const FFNResult& expected, const float* out,
                     const std::string& where) {
  for (std::size_t c = 0; c < expected.out.size(); ++c) {
    const double error = std::fabs(static_cast<double>(out[c]) - expected.out[c]);
    REQUIRE_MESSAGE(error <= Tolerance(o, rows) * expected.magnitude[c], o.Name(), ": ", where,
                    " column ", c, " is off by ", error / expected.magnitude[c]);
  }
}

}  // namespace powerinfer::testing
