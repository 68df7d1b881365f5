// Helpers for tests of kernels: activations in the forms that kernels take.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/testing.h"

namespace powerinfer::testing::kernel {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::vector<Format> AllFormats() {
  std::vector<Format> formats;
  for (std::int32_t i = 0; i < kNumFormats; ++i) formats.push_back(static_cast<Format>(i));
  return formats;
}

inline std::string Where(const KernelTable& table, Format format, std::int64_t columns) {
  return std::string(table.name) + " " + std::string(InfoOf(format).name) + " width " +
         std::to_string(columns);
}

/// Activations with their int8 copies; sizes that are no multiple of 32 have none.
struct Activations {
  std::vector<float> values;
  std::vector<std::int8_t> quantized, permuted;
  std::vector<float> scales, sums;
  std::vector<std::int32_t> half_sums;
  std::vector<std::uint64_t> sign_bits;
  float mean_abs = 0.0F;

  Activations(const KernelTable& table, std::vector<float> x) : values(std::move(x)) {
    const auto n = std::ssize(values);
    if (n % 32 != 0) return;
    quantized.resize(values.size());
    scales.resize(values.size() / 32);
    sums.resize(values.size() / 32);
    table.quantize(values.data(), n, quantized.data(), scales.data(), sums.data());
    Permute(table);
  }
  void Permute(const KernelTable& table) {
    if (values.size() < 256) return;
    const auto group = static_cast<std::size_t>(table.group_weights);
    const std::size_t padded = (values.size() + group - 1) / group * group;
    quantized.resize(padded);
    scales.resize(padded / 32);
    sums.resize(padded / 32);
    half_sums.resize(padded / 16);
    if (values.size() % 64 == 0) {
      sign_bits.resize(values.size() / 64);
      mean_abs = table.binarize(values.data(), std::ssize(values), sign_bits.data());
    }
    permuted.resize(padded);
    table.permute(quantized.data(), std::ssize(quantized), permuted.data(), half_sums.data());
  }
  ActivationRow View() const {
    return {values.data(),
            {quantized.data(), permuted.empty() ? nullptr : permuted.data(), scales.data(),
             sums.data(), std::ssize(values), half_sums.data()},
            sign_bits.data(),
            mean_abs};
  }
  /// The value that the kernel of `format` really multiplies with.
  double At(Format format, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    if (format == Format::kSign)
      return static_cast<double>(values[at] < 0.0F ? -mean_abs : mean_abs);
    if (!InfoOf(format).uses_int8_activations()) return static_cast<double>(values[at]);
    return static_cast<double>(scales[at / 32]) * quantized[at];
  }
};

inline std::vector<float> RandomValues(std::int64_t n, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.Uniform(-2.0F, 2.0F);
  return values;
}

}  // namespace powerinfer::testing::kernel
