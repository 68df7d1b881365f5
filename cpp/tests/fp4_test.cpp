// MXFP4, whose scales are all powers of two of f32: subnormal ones, and ones that overflow.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels_testing.h"
#include "tests/reference_formats.h"

namespace powerinfer::testing {
namespace {

using namespace kernel;  // NOLINT: all of it is for these tests

constexpr auto kIndex = static_cast<std::size_t>(Format::kMXFP4);
constexpr std::size_t kBlock = 17;

using Row = std::vector<std::uint8_t>;

/// A row of random codes with the given exponent in every block.
Row RowOf(std::int64_t columns, std::uint8_t exponent, Random& random) {
  Row row = RandomRow(Format::kMXFP4, columns, random);
  for (std::size_t at = 0; at < row.size(); at += kBlock) row[at] = exponent;
  return row;
}

/// Makes every third block zeros of both signs, with an exponent.
Row WithZeroBlocks(Row row, std::uint8_t exponent) {
  for (std::size_t at = 0; at < row.size(); at += 3 * kBlock) {
    std::memset(&row[at], 0x80, kBlock);
    row[at] = exponent;
  }
  return row;
}

/// Products of one row with several tokens, as decode rows multiply, then as prompt rows do.
std::vector<float> Products(const KernelTable& table, const Row& row, std::int64_t columns,
                            const std::vector<ActivationRow>& x) {
  const auto count = std::ssize(x);
  std::vector<float> out(static_cast<std::size_t>(count), kNaN);
  table.dot_rows[kIndex](row.data(), 0, 1, columns, x.data(), count, out.data(), 1, 2048);
  if (x[0].quantized.permuted == nullptr) return out;
  alignas(64) std::uint8_t unpacked[8192];
  alignas(64) float sums[256];
  std::vector<float> prompt(out.size(), kNaN);
  table.int8.unpack[kIndex](row.data(), columns, unpacked);
  table.int8.multiply[kIndex](unpacked, 1, columns, x.data(), count, prompt.data(), 1, sums);
  out.insert(out.end(), prompt.begin(), prompt.end());
  std::vector<std::uint16_t> tokens;
  for (std::int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<std::uint16_t>(t));
  table.int8.multiply_listed[kIndex](unpacked, columns, x.data(), tokens.data(), count,
                                     prompt.data());
  out.insert(out.end(), prompt.begin(), prompt.end());
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("Fp4DecodesEveryExponentAndCode") {
  constexpr std::array<float, 16> kValues = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};
  for (const KernelTable* table : AvailableKernels()) {
    Row row(256 * kBlock);
    for (std::size_t e = 0; e < 256; ++e) {
      row[e * kBlock] = static_cast<std::uint8_t>(e);
      for (std::size_t i = 0; i < 16; ++i) {
        row[e * kBlock + 1 + i] = static_cast<std::uint8_t>(i | ((15 - i) << 4));
      }
    }
    std::vector<float> out(256 * 32, kNaN);
    table->dequantize_row[kIndex](row.data(), std::ssize(out), out.data());
    std::vector<float> want;
    for (int e = 0; e < 256; ++e) {
      for (std::size_t i = 0; i < 16; ++i) want.push_back(std::ldexp(kValues[i], e - 128));
      for (std::size_t i = 0; i < 16; ++i) want.push_back(std::ldexp(kValues[15 - i], e - 128));
    }
    REQUIRE_MESSAGE(SameBits(out, want), std::string(table->name), ": other numbers");
  }
}

TEST_CASE("Fp4ZerosWithHugeScalesAddNothing") {
  Random random(51);
  for (const KernelTable* table : AvailableKernels()) {
    for (const std::int64_t columns : {96, 256, 288, 2880, 3072}) {
      const Row plain = WithZeroBlocks(RowOf(columns, 127, random), 127);
      const Row huge = WithZeroBlocks(plain, 255);
      std::vector<Activations> x;
      std::vector<ActivationRow> views;
      for (int t = 0; t < 5; ++t) {
        std::vector<float> values = RandomValues(columns, random);
        for (float& value : values) value *= 1e6F;
        x.emplace_back(*table, values);
      }
      for (const Activations& token : x) views.push_back(token.View());
      const std::string where = Where(*table, Format::kMXFP4, columns);
      const std::vector<float> want = Products(*table, plain, columns, views);
      for (const float product : want) REQUIRE_MESSAGE(std::isfinite(product), where);
      REQUIRE_MESSAGE(SameBits(Products(*table, huge, columns, views), want), where,
                      ": a zero became something");

      std::vector<float> sums(static_cast<std::size_t>(columns), 1.0F);
      std::vector<float> wanted_sums = sums;
      table->axpy_row[kIndex](plain.data(), columns, 100.0F, wanted_sums.data());
      table->axpy_row[kIndex](huge.data(), columns, 100.0F, sums.data());
      table->axpy_two_rows[kIndex](plain.data(), plain.data(), columns, 9.0F, -100.0F,
                                   wanted_sums.data());
      table->axpy_two_rows[kIndex](plain.data(), huge.data(), columns, 9.0F, -100.0F, sums.data());
      REQUIRE_MESSAGE(SameBits(sums, wanted_sums), where, ": a zero was added");
    }
  }
}

TEST_CASE("Fp4SubnormalScalesAreExact") {
  Random random(52);
  for (const KernelTable* table : AvailableKernels()) {
    for (const int exponent : {0, 1, 2}) {
      for (const std::int64_t columns : {64, 512, 736}) {
        const Row row = RowOf(columns, static_cast<std::uint8_t>(exponent), random);
        // Activations whose int8 copies and scales are exact, so that every sum is.
        std::vector<float> values(static_cast<std::size_t>(columns));
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] =
              static_cast<float>(i % 32 == 0 ? 127 : static_cast<int>(i % 200) - 100) * 0x1p20F;
        }
        const Activations x(*table, values);
        double want = 0.0;
        for (std::int64_t i = 0; i < columns; ++i) {
          want += WeightAt(Format::kMXFP4, row.data(), i) * x.At(Format::kMXFP4, i);
        }
        for (const float got : Products(*table, row, columns, {x.View()})) {
          REQUIRE_MESSAGE(static_cast<double>(got) == want, Where(*table, Format::kMXFP4, columns),
                          ": exponent ", exponent, ", got ", got, ", want ", want);
        }
      }
    }
  }
}

TEST_CASE("Fp4ProductsKeepBadActivationsVisible") {
  Random random(53);
  for (const KernelTable* table : AvailableKernels()) {
    const Row row = RowOf(512, 255, random);
    for (const float bad : {kNaN, std::numeric_limits<float>::infinity()}) {
      Activations x(*table, RandomValues(512, random));
      x.scales[5] = bad;
      for (const float got : Products(*table, row, 512, {x.View()})) {
        REQUIRE_MESSAGE(!std::isfinite(got), Where(*table, Format::kMXFP4, 512), ": hides it");
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer::testing
