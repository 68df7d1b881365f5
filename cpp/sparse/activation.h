// Activation functions of feed-forward blocks and the test for neurons that fire.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"

namespace powerinfer {

/// With g = gate.x and u = up.x per neuron: silu(g)*u, gelu(g)*u (tanh approximation), relu(g)*u,
/// relu(g)*relu(u), (g if g >= threshold else 0)*u, relu(g)^2*u, and with g at most 7 and u within
/// [-7, 7] g*sigmoid(1.702 g)*(u + 1). Without gate the function of u.
/// The order is that of values.py's ActivationKind.
enum class ActivationKind : std::int32_t {
  kSilu,
  kGelu,
  kRelu,
  kDRelu,
  kFatRelu,
  kRelu2,
  kClampedSwiGlu,
};

struct Activation {
  ActivationKind kind = ActivationKind::kSilu;
  /// The least z that fires, of FatReLU. Of silu and gelu: 0, or above it if small values count as
  /// zero; then those z in [dip_begin, dip_end] fire, too, where the function dips below zero.
  float threshold = 0.0F;
  float dip_begin = 1.0F;
  float dip_end = 0.0F;

  /// True for silu or gelu of which small values count as zero.
  bool IsCut() const {
    return (kind == ActivationKind::kSilu || kind == ActivationKind::kGelu) && threshold > 0.0F;
  }
  /// True if neurons may be exactly zero.
  bool IsSparse() const {
    return IsCut() || (kind != ActivationKind::kSilu && kind != ActivationKind::kGelu &&
                       kind != ActivationKind::kClampedSwiGlu);
  }
};

/// Calls visit(fires) with the test of gate values (ungated block: up values) fires(z). NaN fires;
/// everything does for functions that are never exactly zero.
template <typename Visitor>
void VisitFires(const Activation& activation, const Visitor& visit) {
  if (!activation.IsSparse()) {
    visit([](float) { return true; });
  } else if (activation.IsCut()) {
    visit([cut = activation](float z) {
      return !(z < cut.threshold) || (cut.dip_begin <= z && z <= cut.dip_end);
    });
  } else if (activation.kind == ActivationKind::kFatRelu) {
    const float threshold = activation.threshold;
    visit([threshold](float z) { return !(z < threshold); });
  } else {
    visit([](float z) { return !(z <= 0.0F); });
  }
}

/// gate[i] = activation(gate[i]) * up[i], or activation(gate[i]) if up is null; DRELU also clips
/// up, and what a cut function leaves out is 0 * up[i]. Returns how many neurons fired, n for
/// functions that are never exactly zero.
std::int64_t Activate(const KernelTable& kernels, const Activation& activation, std::int64_t n,
                      float* gate, const float* up);

}  // namespace powerinfer
