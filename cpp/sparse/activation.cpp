#include "sparse/activation.h"

#include <bit>

namespace powerinfer {
namespace {

// Plain arithmetic without branches or library calls, so that the compiler makes vectors of it.

/// e^x to about 2 units in the last place; beyond the range of f32 the ends of the range.
inline float Exp(float x) {
  constexpr float kHighest = 88.37F;
  constexpr float kLowest = -87.33F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // exact in few bits: n * kLn2High does not round
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  x = x > kHighest ? kHighest : x;
  x = x < kLowest ? kLowest : x;
  const float shifted = x * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor coefficients of e^r, adjusted to |r| <= ln(2) / 2 (Cephes, S. Moshier: expf).
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // The low bits of `shifted` hold n; moved into the exponent they scale by 2^n.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23U;
  return p * std::bit_cast<float>(exponent);
}

inline float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }
inline float Silu(float x) { return x * Sigmoid(x); }

/// 0.5 x (1 + tanh(s)) with s = sqrt(2 / pi) (x + 0.044715 x^3), which equals x sigmoid(2 s).
inline float Gelu(float x) {
  constexpr float kTwoSqrt2OverPi = 1.59576912F;
  return x * Sigmoid(kTwoSqrt2OverPi * (x + 0.044715F * x * x * x));
}

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

/// Every id is written, but the end moves on only for those that fire: no branch to mispredict.
template <typename Predicate>
std::int64_t Compact(std::int64_t n, std::int32_t* ids, const Predicate& fires) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    ids[count] = static_cast<std::int32_t>(i);
    count += fires(i) ? 1 : 0;
  }
  return count;
}

}  // namespace

std::int64_t FindFiring(const Activation& activation, const float* z, std::int64_t n,
                        std::int32_t* ids) {
  if (activation.kind == ActivationKind::kFatRelu) {
    const float threshold = activation.threshold;
    return Compact(n, ids, [&](std::int64_t i) { return !(z[i] < threshold); });
  }
  return Compact(n, ids, [&](std::int64_t i) { return !(z[i] <= 0.0F); });
}

std::int64_t Activate(const Activation& activation, std::int64_t n, float* gate, const float* up) {
  const std::int64_t active = CountFiring(activation, n, gate, up);
  switch (activation.kind) {
    case ActivationKind::kSilu:
      Apply(n, gate, up, Silu);
      break;
    case ActivationKind::kGelu:
      Apply(n, gate, up, Gelu);
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
  }
  return active;
}

}  // namespace powerinfer
