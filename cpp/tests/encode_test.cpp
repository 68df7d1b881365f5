// Encoders and signs: the same bytes in every table, and close enough to the numbers.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/reference_formats.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Encoder {
  Format format;
  double max_error;  ///< mean squared error of normal numbers, in units of their variance
  float limit;       ///< largest number that is accepted
};

constexpr std::array<Encoder, 16> kEncoders = {{
    {Format::kF32, 0.0, kInfinity},
    {Format::kF16, 1e-6, kInfinity},
    {Format::kBF16, 1e-5, kInfinity},
    {Format::kQ8_0, 1e-4, 127 * 65504.0F},
    {Format::kQ4_0, 0.012, 8 * 65504.0F},
    {Format::kQ4_1, 0.01, 65504.0F},
    {Format::kQ5_0, 0.003, 16 * 65504.0F},
    {Format::kQ5_1, 0.0025, 65504.0F},
    {Format::kQ4_K, 0.006, 63 * 65504.0F},
    {Format::kQ5_K, 0.0015, 63 * 65504.0F},
    {Format::kQ6_K, 0.0004, 127 * 31 * 65504.0F},
    {Format::kMXFP4, 0.02, std::numeric_limits<float>::max()},
    {Format::kQ4_0Superblock, 0.012, 8 * 65504.0F},
    {Format::kLowbit2, 0.12, 32752.0F},
    {Format::kLowbit3, 0.038, 32752.0F},
    {Format::kSign, 0.37, 65504.0F},
}};

/// Roughly normal numbers: sums of uniform ones.
std::vector<float> NormalNumbers(std::int64_t n, float scale, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) {
    value = 0.0F;
    for (int i = 0; i < 12; ++i) value += random.Uniform(-0.5F, 0.5F);
    value *= scale;
  }
  return values;
}

bool Encode(const KernelTable& table, Format format, const std::vector<float>& values,
            std::vector<std::uint8_t>* row) {
  row->assign(static_cast<std::size_t>(RowBytes(format, std::ssize(values))), 0xAB);
  return table.encode_row[static_cast<std::size_t>(format)](values.data(), std::ssize(values),
                                                            row->data());
}

std::string Where(const KernelTable& table, Format format) {
  return std::string(table.name) + " " + std::string(InfoOf(format).name);
}

TEST_CASE("EncodersAgreeInEveryTable") {
  Random random(21);
  for (const Encoder& encoder : kEncoders) {
    for (const float scale : {1e-30F, 1e-6F, 0.02F, 1.0F, 3000.0F}) {
      std::vector<float> values = NormalNumbers(2048, scale, random);
      std::fill(values.begin() + 64, values.begin() + 96, 0.0F);
      for (std::size_t i = 128; i < 160; ++i) values[i] = std::round(values[i] / scale) * scale;
      std::fill(values.begin() + 2000, values.end(), 0.0F);
      std::vector<std::uint8_t> want, got;
      REQUIRE_MESSAGE(Encode(*AvailableKernels().back(), encoder.format, values, &want),
                      "was refused");
      for (const KernelTable* table : AvailableKernels()) {
        REQUIRE_MESSAGE(Encode(*table, encoder.format, values, &got), "was refused");
        REQUIRE_MESSAGE(got == want, Where(*table, encoder.format),
                        " encodes differently from portable");
      }
    }
  }
}

TEST_CASE("WeightedEncodersAgreeInEveryTable") {
  Random random(24);
  const std::vector<float> values = NormalNumbers(1792, 0.02F, random);
  std::vector<float> weights(values.size());
  for (float& weight : weights)
    weight = std::ldexp(1.0F, -1 - static_cast<int>(random.Uniform(0.0F, 9.0F)));
  for (std::size_t i = 0; i < kFormatInfo.size(); ++i) {
    const auto format = static_cast<Format>(i);
    if (AvailableKernels().back()->encode_weighted_row[i] == nullptr) continue;
    std::vector<std::uint8_t> plain, want;
    REQUIRE(Encode(*AvailableKernels().back(), format, values, &plain));
    for (const KernelTable* table : AvailableKernels()) {
      std::vector<std::uint8_t> got(plain.size(), 0xAB);
      REQUIRE(table->encode_weighted_row[i](values.data(), weights.data(), std::ssize(values),
                                            got.data()));
      if (want.empty()) want = got;
      REQUIRE_MESSAGE(got == want, Where(*table, format), " encodes differently");
      REQUIRE_MESSAGE(got != plain, Where(*table, format), " takes no weights");
    }
  }
}

TEST_CASE("EncodersAreNearTheNumbers") {
  Random random(22);
  const KernelTable& table = *AvailableKernels().front();
  for (const Encoder& encoder : kEncoders) {
    const std::vector<float> values = NormalNumbers(16384, 0.5F, random);
    std::vector<std::uint8_t> row;
    REQUIRE_MESSAGE(Encode(table, encoder.format, values, &row), "was refused");
    double error = 0.0;
    double variance = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      const double off = WeightAt(encoder.format, row.data(), static_cast<std::int64_t>(i)) - value;
      error += off * off;
      variance += value * value;
    }
    REQUIRE_MESSAGE(error <= encoder.max_error * variance, Where(table, encoder.format), ": error ",
                    error / variance);
  }
}

TEST_CASE("EncodersRefuseWhatWouldSpoilABlock") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Encoder& encoder : kEncoders) {
      if (InfoOf(encoder.format).block_size == 1) continue;
      const float beyond = std::nextafter(encoder.limit, kInfinity);
      for (const float bad : {kInfinity, -kInfinity, std::nanf(""), beyond, -beyond}) {
        std::vector<float> values(512, 1.0F);
        std::vector<std::uint8_t> row;
        values[511] = bad;
        REQUIRE_MESSAGE(!Encode(*table, encoder.format, values, &row),
                        Where(*table, encoder.format), " took ", bad);
        values[511] = -encoder.limit;
        REQUIRE_MESSAGE(Encode(*table, encoder.format, values, &row), Where(*table, encoder.format),
                        " refused ", encoder.limit);
        for (std::int64_t i = 0; i < 512; ++i) {
          REQUIRE_MESSAGE(std::isfinite(WeightAt(encoder.format, row.data(), i)),
                          Where(*table, encoder.format), ": a number at the limit became infinite");
        }
      }
    }
  }
}

TEST_CASE("BinarizeKeepsSignsAndTheMeanMagnitude") {
  Random random(23);
  for (const KernelTable* table : AvailableKernels()) {
    const std::string name(table->name);
    for (const std::int64_t used : {0, 1, 63, 64, 100, 512}) {
      std::vector<float> x(512, 0.0F);
      double sum = 0.0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(used); ++i) {
        x[i] = random.Uniform(-3.0F, 3.0F);
        sum += std::abs(static_cast<double>(x[i]));
      }
      std::array<std::uint64_t, 8> bits;
      const float mean = table->binarize(x.data(), 512, bits.data());
      const double want = used == 0 ? 0.0 : sum / static_cast<double>(used);
      REQUIRE_MESSAGE(std::abs(static_cast<double>(mean) - want) <= 1e-6 * want, name,
                      ": mean magnitude");
      for (std::size_t i = 0; i < 512; ++i) {
        REQUIRE_MESSAGE(((bits[i / 64] >> (i % 64)) & 1U) == (x[i] < 0.0F ? 1U : 0U), name,
                        ": sign");
      }
      std::array<std::uint64_t, 8> portable;
      const float portable_mean =
          AvailableKernels().back()->binarize(x.data(), 512, portable.data());
      REQUIRE_MESSAGE(
          (std::bit_cast<std::uint32_t>(mean) == std::bit_cast<std::uint32_t>(portable_mean) &&
           bits == portable),
          name, " differs from portable");
    }
    for (const float bad : {kInfinity, std::nanf("")}) {
      std::vector<float> x(64, 1.0F);
      x[5] = bad;
      std::uint64_t bits = 0;
      REQUIRE_MESSAGE(!std::isfinite(table->binarize(x.data(), 64, &bits)), name,
                      ": hides a bad value");
    }
  }
}

}  // namespace
}  // namespace powerinfer::testing
