// Every kernel of every table this CPU can run, against double precision.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "quant/superblock.h"
#include "tests/reference_formats.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Format> AllFormats() {
  std::vector<Format> formats;
  for (std::int32_t i = 0; i < kNumFormats; ++i) formats.push_back(static_cast<Format>(i));
  return formats;
}

/// Widths with whole groups of 256, with tails and without a whole group.
std::vector<std::int64_t> Widths(Format format) {
  const std::int64_t block = InfoOf(format).block_size;
  if (block == 1)
    return {1, 2, 3, 7, 8, 15, 16, 31, 33, 63, 64, 65, 100, 129, 256, 515, 1055, 4613};
  if (block == 32) return {32, 64, 96, 224, 256, 288, 512, 736, 1024};
  return {256, 512, 768, 1024};
}

std::string Where(const KernelTable& table, Format format, std::int64_t columns) {
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
    if (values.size() % 256 != 0) return;
    const auto group = static_cast<std::size_t>(table.group_weights);
    const std::size_t padded = (values.size() + group - 1) / group * group;
    quantized.resize(padded);
    scales.resize(padded / 32);
    sums.resize(padded / 32);
    half_sums.resize(padded / 16);
    sign_bits.resize(values.size() / 64);
    mean_abs = table.binarize(values.data(), std::ssize(values), sign_bits.data());
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
  /// What the kernel of `format` really multiplies with.
  double At(Format format, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    if (format == Format::kSign)
      return static_cast<double>(values[at] < 0.0F ? -mean_abs : mean_abs);
    if (!InfoOf(format).uses_int8_activations()) return static_cast<double>(values[at]);
    return static_cast<double>(scales[at / 32]) * quantized[at];
  }
};

std::vector<float> RandomValues(std::int64_t n, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.Uniform(-2.0F, 2.0F);
  return values;
}

/// Rows on odd addresses with a gap between them, in a buffer that ends where the last row ends.
struct Rows {
  std::int64_t stride;
  std::unique_ptr<std::uint8_t[]> buffer;

  Rows(Format format, std::int64_t columns, std::int64_t num_rows, Random& random)
      : stride(RowBytes(format, columns) + 6) {
    buffer = std::make_unique<std::uint8_t[]>(static_cast<std::size_t>(1 + stride * num_rows - 6));
    for (std::int64_t r = 0; r < num_rows; ++r) {
      const auto row = RandomRow(format, columns, random);
      std::memcpy(buffer.get() + 1 + r * stride, row.data(), row.size());
    }
  }
  const std::uint8_t* Row(std::int64_t r) const { return buffer.get() + 1 + r * stride; }
};

/// Compares with the sum in double. f32 sums err by some units of the largest terms, which include
/// the offsets of the codes: up to the row's largest weight for every weight.
void CheckDot(Format format, const std::uint8_t* row, std::int64_t columns, const Activations& x,
              float got, const std::string& where) {
  double sum = 0.0;
  double largest = 0.0;
  double activity = 0.0;
  for (std::int64_t i = 0; i < columns; ++i) {
    const double weight = WeightAt(format, row, i);
    sum += weight * x.At(format, i);
    largest = std::max(largest, std::abs(weight));
    activity += std::abs(x.At(format, i));
  }
  const double error = std::abs(sum - static_cast<double>(got));
  REQUIRE_MESSAGE(error <= 1e-6 * largest * activity, where, ": got ", got, ", want ", sum);
}

void CheckDotRows(const KernelTable& table, Format format, std::int64_t columns, Random& random) {
  constexpr std::int64_t kRows = 17;  // two groups of rows and a rest
  const std::string where = Where(table, format, columns);
  const Rows rows(format, columns, kRows, random);
  std::vector<Activations> x;
  std::vector<ActivationRow> views;
  for (std::int64_t t = 0; t < kMaxDotTokens; ++t) {
    x.emplace_back(table, RandomValues(columns, random));
    views.push_back(x.back().View());
  }
  const auto dot = table.dot_rows[static_cast<std::size_t>(format)];
  std::vector<float> alone(static_cast<std::size_t>(kMaxDotTokens * kRows), kNaN);
  for (std::int64_t t = 0; t < kMaxDotTokens; ++t) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const Activations& own = x[static_cast<std::size_t>(t)];
      float* out = &alone[static_cast<std::size_t>(t * kRows + r)];
      dot(rows.Row(r), rows.stride, 1, columns, &views[static_cast<std::size_t>(t)], 1, out, 1, 0);
      if (t < 4) CheckDot(format, rows.Row(r), columns, own, *out, where);
    }
  }
  for (std::int64_t num_tokens = 1; num_tokens <= kMaxDotTokens; ++num_tokens) {
    for (const std::int64_t num_rows : {std::int64_t{1}, std::int64_t{5}, kRows}) {
      for (const std::int64_t ahead : {0, 64, 2048, 8192}) {
        std::vector<float> out(static_cast<std::size_t>(num_tokens * kRows), kNaN);
        dot(rows.Row(0), rows.stride, num_rows, columns, views.data(), num_tokens, out.data(),
            kRows, ahead);
        for (std::int64_t t = 0; t < num_tokens; ++t) {
          REQUIRE_MESSAGE(std::memcmp(&out[static_cast<std::size_t>(t * kRows)],
                                      &alone[static_cast<std::size_t>(t * kRows)],
                                      static_cast<std::size_t>(num_rows) * sizeof(float)) == 0,
                          where, ", ", num_tokens,
                          " tokens: bits depend on the other rows or tokens, or on prefetching");
        }
      }
    }
  }
}

void CheckDequantize(const KernelTable& table, Format format, std::int64_t columns,
                     Random& random) {
  const Rows rows(format, columns, 1, random);
  std::vector<float> out(static_cast<std::size_t>(columns), kNaN);
  table.dequantize_row[static_cast<std::size_t>(format)](rows.Row(0), columns, out.data());
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto want = static_cast<float>(WeightAt(format, rows.Row(0), i));
    const float got = out[static_cast<std::size_t>(i)];
    REQUIRE_MESSAGE(got == want, Where(table, format, columns), ": weight ", i, " is ", got,
                    ", want ", want);
  }
}

void CheckAxpy(const KernelTable& table, Format format, std::int64_t columns, Random& random) {
  const Rows rows(format, columns, 1, random);
  const std::vector<float> before = RandomValues(columns, random);
  std::vector<float> y = before;
  const float scale = random.Uniform(-3.0F, 3.0F);
  table.axpy_row[static_cast<std::size_t>(format)](rows.Row(0), columns, scale, y.data());
  for (std::int64_t i = 0; i < columns; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double term = static_cast<double>(scale) * WeightAt(format, rows.Row(0), i);
    const double want = static_cast<double>(before[at]) + term;
    const double bound = 2e-7 * (std::abs(want) + std::abs(term)) + 1e-12;
    REQUIRE_MESSAGE(std::abs(want - static_cast<double>(y[at])) <= bound,
                    Where(table, format, columns), ": y[", i, "] is ", y[at], ", want ", want);
  }
}

void CheckAxpyTwoRows(const KernelTable& table, Format format, std::int64_t columns,
                      Random& random) {
  const auto index = static_cast<std::size_t>(format);
  const Rows rows(format, columns, 2, random);
  std::vector<float> want = RandomValues(columns, random);
  std::vector<float> got = want;
  table.axpy_row[index](rows.Row(0), columns, 1.7F, want.data());
  table.axpy_row[index](rows.Row(1), columns, -0.3F, want.data());
  table.axpy_two_rows[index](rows.Row(0), rows.Row(1), columns, 1.7F, -0.3F, got.data());
  REQUIRE_MESSAGE(std::memcmp(want.data(), got.data(), got.size() * sizeof(float)) == 0,
                  Where(table, format, columns), ": two rows at once have other bits");
}

using FormatCheck = void (*)(const KernelTable&, Format, std::int64_t, Random&);

void ForEveryWidth(FormatCheck check) {
  Random random(1);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      for (const std::int64_t columns : Widths(format)) check(*table, format, columns, random);
    }
  }
}

TEST_CASE("DotRowsMatchDoublePrecision") { ForEveryWidth(CheckDotRows); }
TEST_CASE("DequantizeIsExact") { ForEveryWidth(CheckDequantize); }
TEST_CASE("AxpyMatchesDoublePrecision") { ForEveryWidth(CheckAxpy); }
TEST_CASE("AxpyOfTwoRowsHasTheBitsOfTwo") { ForEveryWidth(CheckAxpyTwoRows); }

/// All codes at an extreme and activations at +-127: 16-bit intermediate sums must not saturate.
TEST_CASE("ExtremeCodesDoNotSaturate") {
  Random random(2);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (!InfoOf(format).uses_int8_activations()) continue;
      for (const int fill : {0x00, 0xFF, 0x80, 0x7F, 0xF0, 0x0F}) {
        for (const int pattern : {0, 1, 2, 3}) {
          auto row = RandomRow(format, 256, random);
          for (std::int64_t i = 0; i < std::ssize(row); ++i) {
            // Keep bytes that may be scales: even a superblock has its scales in the first 16.
            const std::int64_t at = i % InfoOf(format).block_bytes;
            const bool is_head = format == Format::kQ6_K ? at >= 192 : at < 16;
            const bool is_code = InfoOf(format).block_size == 32 ? at >= 8 : !is_head;
            if (is_code) row[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(fill);
          }
          std::vector<float> values(256);
          for (std::size_t i = 0; i < 256; ++i) {
            const bool negative =
                pattern == 1 || (pattern == 2 && i % 2 == 1) || (pattern == 3 && i % 4 < 2);
            values[i] = negative ? -127.0F : 127.0F;
          }
          const Activations x(*table, values);
          const ActivationRow view = x.View();
          float got = kNaN;
          table->dot_rows[static_cast<std::size_t>(format)](row.data(), 0, 1, 256, &view, 1, &got,
                                                            1, 2048);
          CheckDot(format, row.data(), 256, x, got, Where(*table, format, 256));
        }
      }
    }
  }
}

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

TEST_CASE("SuperblockRoundTripsAndOrdersActivations") {
  Random random(6);
  const auto plain = RandomRow(Format::kQ4_0, 2 * 768, random);
  std::vector<std::uint8_t> packed(plain.size());
  std::vector<std::uint8_t> back(plain.size());
  RepackQ4_0ToSuperblock(plain.data(), 2, 768, packed.data());
  RepackSuperblockToQ4_0(packed.data(), 2, 768, back.data());
  REQUIRE_MESSAGE(back == plain, "repacking there and back changes bytes");
  for (std::int64_t i = 0; i < 2 * 768; ++i) {
    REQUIRE_MESSAGE(WeightAt(Format::kQ4_0, plain.data(), i) ==
                        WeightAt(Format::kQ4_0Superblock, packed.data(), i),
                    "weight ", i, " moved");
  }
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
