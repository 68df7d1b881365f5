// Activations, half precision and plain vectors in every table this CPU can run.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels_testing.h"
#include "tests/reference_formats.h"

namespace powerinfer::testing {
namespace {

using namespace kernel;  // NOLINT: all of it is for these tests

TEST_CASE("QuantizeRoundsToNearest") {
  Random random(3);
  for (const KernelTable* table : AvailableKernels()) {
    const Activations x(*table, RandomValues(512, random));
    for (std::size_t b = 0; b < 16; ++b) {
      float largest = 0.0F;
      int sum = 0;
      for (std::size_t i = 32 * b; i < 32 * b + 32; ++i) {
        largest = std::max(largest, std::abs(x.values[i]));
        sum += x.quantized[i];
        const double decoded = static_cast<double>(x.scales[b]) * x.quantized[i];
        REQUIRE_MESSAGE(std::abs(decoded - static_cast<double>(x.values[i])) <=
                            0.5001 * static_cast<double>(x.scales[b]),
                        std::string(table->name), ": value not rounded to nearest");
      }
      REQUIRE_MESSAGE(x.scales[b] == largest / 127.0F, std::string(table->name), ": scale");
      REQUIRE_MESSAGE(x.sums[b] == x.scales[b] * static_cast<float>(sum), std::string(table->name),
                      ": sum");
    }
  }
}

TEST_CASE("QuantizeIsTheSameInEveryTable") {
  Random random(4);
  std::vector<float> values = RandomValues(512, random);  // whole groups of every table
  values[3] = 127.0F;                                     // scale 1: halves below are ties
  for (std::size_t i = 4; i < 32; ++i) values[i] = static_cast<float>(i) - 18.5F;
  const Activations want(*AvailableKernels().back(), values);
  REQUIRE_MESSAGE((want.quantized[4] == -14 && want.quantized[5] == -14), "ties go to even");
  for (const KernelTable* table : AvailableKernels()) {
    const Activations got(*table, values);
    REQUIRE_MESSAGE(
        (got.quantized == want.quantized && got.scales == want.scales && got.sums == want.sums),
        std::string(table->name), " differs from portable");
  }
}

TEST_CASE("QuantizeHandlesZeroTinyAndNonFiniteBlocks") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const float bad : {kNaN, -kNaN, HUGE_VALF, -HUGE_VALF}) {
      std::vector<float> values(64, 1.0F);
      values[32 + 17] = bad;
      const Activations x(*table, values);
      REQUIRE_MESSAGE(x.scales[0] == 1.0F / 127.0F, "the block before is untouched");
      REQUIRE_MESSAGE((std::isnan(x.scales[1]) && std::isnan(x.sums[1])),
                      "non-finite input poisons the block");
      const ActivationRow view = x.View();
      Random random(5);
      const auto row = RandomRow(Format::kQ8_0, 64, random);
      float got = 0.0F;
      table->dot_rows[static_cast<std::size_t>(Format::kQ8_0)](row.data(), 0, 1, 64, &view, 1, &got,
                                                               1, 2048);
      REQUIRE_MESSAGE(std::isnan(got), "a dot product with a poisoned block is NaN");
    }
    for (const float small : {0.0F, -0.0F, 1e-44F, -1e-37F}) {
      const Activations x(*table, std::vector<float>(32, small));
      REQUIRE_MESSAGE((x.scales[0] == 0.0F && x.sums[0] == 0.0F && x.quantized[31] == 0),
                      "tiny blocks are zero");
    }
  }
}

TEST_CASE("ActivationsFollowTheOrderOfSuperblocks") {
  Random random(6);
  for (const KernelTable* table : AvailableKernels()) {
    const Activations x(*table, RandomValues(512, random));
    const auto group = static_cast<std::size_t>(table->group_weights);
    for (std::size_t i = 0; i < 512; ++i) {
      const std::size_t block = i % group / 32;
      const std::size_t at = i / group * group + group / 8 * (i % 32 / 4) + 4 * block + i % 4;
      REQUIRE_MESSAGE(x.permuted[at] == x.quantized[i], std::string(table->name),
                      ": permuted order");
    }
  }
}

TEST_CASE("HalfConversionsAreExhaustive") {
  for (const KernelTable* table : AvailableKernels()) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    std::vector<float> values(halves.size());
    table->dequantize_row[static_cast<std::size_t>(Format::kF16)](
        reinterpret_cast<const std::uint8_t*>(halves.data()), 65536, values.data());
    std::vector<std::uint16_t> back(halves.size());
    table->f32_to_f16(values.data(), 65536, back.data());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double want = HalfValue(halves[i]);
      if (std::isnan(want)) {
        REQUIRE_MESSAGE((std::isnan(values[i]) && std::isnan(HalfValue(back[i]))), "NaN stays NaN");
      } else {
        REQUIRE_MESSAGE((static_cast<double>(values[i]) == want && back[i] == halves[i]),
                        std::string(table->name), ": half ", i);
      }
    }
  }
}

TEST_CASE("RoundingToHalfIsToNearestEven") {
  // Midpoints between neighbouring halves, and one f32 step to either side of them.
  for (const KernelTable* table : AvailableKernels()) {
    for (std::uint32_t half = 0; half < 0x7BFF; ++half) {
      const auto low = static_cast<std::uint16_t>(half);
      const auto high = static_cast<std::uint16_t>(half + 1);
      const auto middle = static_cast<float>((HalfValue(low) + HalfValue(high)) / 2);
      const float x[3] = {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)};
      std::uint16_t out[3];
      table->f32_to_f16(x, 3, out);
      REQUIRE_MESSAGE((out[0] == low && out[1] == (low % 2 == 0 ? low : high) && out[2] == high),
                      std::string(table->name), ": around half ", half);
    }
    const float large[4] = {65519.0F, 65520.0F, -1e30F, -kNaN};
    std::uint16_t out[4];
    table->f32_to_f16(large, 4, out);
    REQUIRE_MESSAGE(
        (out[0] == 0x7BFF && out[1] == 0x7C00 && out[2] == 0xFC00 && std::isnan(HalfValue(out[3]))),
        "overflow is infinity, NaN stays");
  }
}

TEST_CASE("PlainVectorOperations") {
  Random random(7);
  for (const KernelTable* table : AvailableKernels()) {
    for (std::int64_t n = 0; n < 140; ++n) {
      const auto a = RandomValues(n, random);
      const auto b = RandomValues(n, random);
      const auto halves = RandomRow(Format::kF16, n, random);
      std::vector<std::uint16_t> h(a.size());
      if (n > 0) std::memcpy(h.data(), halves.data(), halves.size());
      std::vector<float> y = b;
      table->axpy_f16(h.data(), n, 1.5F, y.data());
      double dot = 0.0;
      double half_dot = 0.0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double half = HalfValue(h[i]);
        dot += static_cast<double>(a[i]) * static_cast<double>(b[i]);
        half_dot += half * static_cast<double>(b[i]);
        REQUIRE_MESSAGE(
            std::abs(static_cast<double>(b[i]) + 1.5 * half - static_cast<double>(y[i])) < 1e-6,
            std::string(table->name), ": axpy_f16");
      }
      const double bound = 1e-6 * static_cast<double>(4 * n);
      REQUIRE_MESSAGE(
          std::abs(dot - static_cast<double>(table->dot_f32(a.data(), b.data(), n))) <= bound,
          std::string(table->name), ": dot_f32");
      REQUIRE_MESSAGE(
          std::abs(half_dot - static_cast<double>(table->dot_f16(h.data(), b.data(), n))) <= bound,
          std::string(table->name), ": dot_f16");
    }
  }
}

}  // namespace
}  // namespace powerinfer::testing
