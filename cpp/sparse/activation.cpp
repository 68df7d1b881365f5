#include "sparse/activation.h"

namespace powerinfer {
namespace {

// Comparisons are written so that NaN counts as firing and stays NaN.
inline float Relu(float x) { return x <= 0.0F ? 0.0F : x; }
inline float FatRelu(float x, float threshold) { return x < threshold ? 0.0F : x; }
inline float Relu2(float x) { return Relu(x) * Relu(x); }

/// One loop per function, with and without up.
template <typename Function>
void Apply(std::int64_t n, float* gate, const float* up, const Function& function) {
  if (up == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) gate[i] = function(gate[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) gate[i] = function(gate[i]) * up[i];
  }
}

// gpt-oss.
constexpr float kClampLimit = 7.0F;
constexpr float kClampedSlope = 1.702F;

/// g * sigmoid(slope * g) * (u + 1) = silu(slope * g) / slope * (u + 1).
void ClampedSwiGlu(const KernelTable& kernels, std::int64_t n, float* gate, const float* up) {
  for (std::int64_t i = 0; i < n; ++i) {
    gate[i] = kClampedSlope * (gate[i] > kClampLimit ? kClampLimit : gate[i]);
  }
  kernels.gemm.silu(n, gate, nullptr);
  for (std::int64_t i = 0; i < n; ++i) {
    float factor = 1.0F;
    if (up != nullptr) {
      factor = up[i] > kClampLimit ? kClampLimit : up[i];
      factor = (factor < -kClampLimit ? -kClampLimit : factor) + 1.0F;
    }
    gate[i] = gate[i] / kClampedSlope * factor;
  }
}

template <typename Predicate>
std::int64_t CountIf(std::int64_t n, const Predicate& fires) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) count += fires(i) ? 1 : 0;
  return count;
}

std::int64_t CountFiring(const Activation& activation, std::int64_t n, const float* gate,
                         const float* up) {
  switch (activation.kind) {
    case ActivationKind::kSilu:
    case ActivationKind::kGelu:
    case ActivationKind::kClampedSwiGlu:
      return n;
    case ActivationKind::kFatRelu:
      return CountIf(n, [&](std::int64_t i) { return !(gate[i] < activation.threshold); });
    case ActivationKind::kDRelu:
      if (up != nullptr) {
        return CountIf(n, [&](std::int64_t i) { return !(gate[i] <= 0.0F) && !(up[i] <= 0.0F); });
      }
      [[fallthrough]];
    case ActivationKind::kRelu:
    case ActivationKind::kRelu2:
      return CountIf(n, [&](std::int64_t i) { return !(gate[i] <= 0.0F); });
  }
  return n;
}

/// Sets values that do not fire to 0, which silu and gelu keep; returns how many fire.
std::int64_t ClearSilent(const Activation& activation, std::int64_t n, float* gate) {
  std::int64_t count = 0;
  VisitFires(activation, [&](const auto& fires) {
    for (std::int64_t i = 0; i < n; ++i) {
      const bool is_firing = fires(gate[i]);
      gate[i] = is_firing ? gate[i] : 0.0F;
      count += is_firing ? 1 : 0;
    }
  });
  return count;
}

}  // namespace

std::int64_t Activate(const KernelTable& kernels, const Activation& activation, std::int64_t n,
                      float* gate, const float* up) {
  const std::int64_t active =
      activation.IsCut() ? ClearSilent(activation, n, gate) : CountFiring(activation, n, gate, up);
  switch (activation.kind) {
    case ActivationKind::kSilu:
      kernels.gemm.silu(n, gate, up);
      break;
    case ActivationKind::kGelu:
      kernels.gemm.gelu(n, gate, up);
      break;
    case ActivationKind::kRelu:
      Apply(n, gate, up, Relu);
      break;
    case ActivationKind::kDRelu:
      Apply(n, gate, nullptr, Relu);
      if (up != nullptr) {
        for (std::int64_t i = 0; i < n; ++i) gate[i] *= Relu(up[i]);
      }
      break;
    case ActivationKind::kFatRelu:
      Apply(n, gate, up, [&](float x) { return FatRelu(x, activation.threshold); });
      break;
    case ActivationKind::kRelu2:
      Apply(n, gate, up, Relu2);
      break;
    case ActivationKind::kClampedSwiGlu:
      ClampedSwiGlu(kernels, n, gate, up);
      break;
  }
  return active;
}

}  // namespace powerinfer
