// Copies of matrices in other formats and their statistics.
#include "ops/recode.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "quant/superblock.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

constexpr std::array<Format, 8> kTargets = {
    Format::kF16,   Format::kQ8_0,    Format::kQ4_0,    Format::kQ4_0Superblock,
    Format::kMXFP4, Format::kLowbit2, Format::kLowbit3, Format::kSign};

struct Copy {
  MatrixView view;
  std::vector<std::uint8_t> data;
  std::int64_t bad_row = -1;

  Copy(const OpContext& context, const MatrixView& source, Format target)
      : view(RecodedShape(source, target)), data(static_cast<std::size_t>(view.NumBytes()), 0xAB) {
    bad_row = Recode(context, source, view, data.data());
    view.data = data.data();
  }
  double At(std::int64_t row, std::int64_t column) const {
    return WeightAt(view.format, view.Row(row), column, view.columns);
  }
};

/// The copy against the encoder applied to the decoded and padded row.
void CheckCopy(const KernelTable& kernels, const TestMatrix& source, const Copy& copy,
               const std::string& where) {
  REQUIRE_MESSAGE(copy.bad_row == -1, where, ": a row was refused");
  const EncodeRowFn encode = kernels.encode_row[static_cast<std::size_t>(copy.view.format)];
  const bool is_lossless = source.view.columns == copy.view.columns &&
                           FileFormat(source.view.format) == FileFormat(copy.view.format);
  for (std::int64_t r = 0; r < source.view.rows; ++r) {
    std::vector<float> numbers(static_cast<std::size_t>(copy.view.columns), 0.0F);
    for (std::int64_t i = 0; i < source.view.columns; ++i) {
      numbers[static_cast<std::size_t>(i)] = static_cast<float>(source.At(r, i));
      if (is_lossless) REQUIRE_MESSAGE(copy.At(r, i) == source.At(r, i), where, ": lost something");
    }
    if (is_lossless) continue;
    std::vector<std::uint8_t> want(static_cast<std::size_t>(copy.view.row_bytes));
    REQUIRE_MESSAGE(encode(numbers.data(), copy.view.columns, want.data()), where, ": refused");
    REQUIRE_MESSAGE(std::memcmp(want.data(), copy.view.Row(r), want.size()) == 0, where,
                    ": other bytes");
  }
}

}  // namespace

TEST_CASE("RecodeEncodesPaddedRowsOfEveryFormat") {
  Random random(31);
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      const std::int64_t block = InfoOf(format).block_size;
      for (const std::int64_t columns :
           {block == 1 ? 77 : block * 3, std::int64_t{512}, OddWidth(format)}) {
        const TestMatrix source(format, 5, columns, random);
        for (const Format target : kTargets) {
          const std::string where = std::string(InfoOf(format).name) + " to " +
                                    std::string(InfoOf(target).name) + ", " +
                                    std::to_string(columns) + " columns";
          TestTeam team(2, *table);
          const Copy copy(team.context, source.view, target);
          const std::int64_t whole = InfoOf(copy.view.format).block_size;
          REQUIRE_MESSAGE((copy.view.columns >= columns && copy.view.columns % whole == 0 &&
                           copy.view.columns < columns + whole),
                          where, ": padded to ", copy.view.columns);
          REQUIRE_MESSAGE((copy.view.format == Format::kQ4_0Superblock) ==
                              (target == Format::kQ4_0Superblock ||
                               (target == Format::kQ4_0 && copy.view.columns % 256 == 0)),
                          where, ": wrong kind of Q4_0");
          CheckCopy(*table, source, copy, where);
        }
      }
    }
  }
}

TEST_CASE("RecodeGivesTheSameBytesOnAnyTeam") {
  Random random(32);
  const TestMatrix source(Format::kF16, 700, 300, random);
  for (const Format target : kTargets) {
    TestTeam one(1);
    TestTeam three(3);
    REQUIRE_MESSAGE(Copy(one.context, source.view, target).data ==
                        Copy(three.context, source.view, target).data,
                    "threads change bytes");
  }
}

TEST_CASE("RecodeNamesTheFirstRowThatCannotBeEncoded") {
  Random random(33);
  TestTeam team(3);
  const TestMatrix source(Format::kF32, 600, 256, random);
  std::vector<std::uint8_t> damaged(source.view.data, source.view.data + source.view.NumBytes());
  const float bad = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t row : {511, 300}) {
    std::memcpy(damaged.data() + row * source.view.row_bytes + 40, &bad, sizeof bad);
  }
  MatrixView view = source.view;
  view.data = damaged.data();
  for (const Format target : kTargets) {
    const std::int64_t want = target == Format::kF16 ? -1 : 300;
    REQUIRE_MESSAGE(Copy(team.context, view, target).bad_row == want, "wrong row");
  }
}

TEST_CASE("CopyStatisticsMatchDoublePrecision") {
  Random random(34);
  for (const Format target : {Format::kLowbit2, Format::kQ8_0, Format::kSign}) {
    const TestMatrix source(Format::kF16, 90, 700, random);
    TestTeam one(1);
    TestTeam three(3);
    const Copy copy(one.context, source.view, target);
    const std::vector<float> mean = RandomFloats(700, random);
    std::vector<float> variance = RandomFloats(700, random);
    for (float& value : variance) value = std::fabs(value);
    std::vector<float> offset(90), noise(90), offset_again(90), noise_again(90);
    CopyStatistics(one.context, source.view, copy.view, mean.data(), variance.data(), offset.data(),
                   noise.data());
    CopyStatistics(three.context, source.view, copy.view, mean.data(), variance.data(),
                   offset_again.data(), noise_again.data());
    REQUIRE_MESSAGE((SameBits(offset, offset_again) && SameBits(noise, noise_again)),
                    "threads change bits");
    for (std::int64_t r = 0; r < 90; ++r) {
      double dot = 0.0, magnitude = 0.0, square = 0.0;
      for (std::int64_t j = 0; j < 700; ++j) {
        const auto at = static_cast<std::size_t>(j);
        const double term = source.At(r, j) * static_cast<double>(mean[at]);
        const double c = copy.At(r, j);
        dot += term;
        magnitude += std::fabs(term);
        square += std::pow(source.At(r, j) - c, 2) * static_cast<double>(variance[at]);
        if (target == Format::kSign) {
          square += c * c * static_cast<double>(variance[at]) * (1.0 - 2.0 / 3.14159265358979);
        }
      }
      const auto at = static_cast<std::size_t>(r);
      REQUIRE_MESSAGE(std::fabs(static_cast<double>(offset[at]) - dot) <= 1e-6 * magnitude,
                      "offset");
      REQUIRE_MESSAGE(
          std::fabs(static_cast<double>(noise[at]) - std::sqrt(square)) <= 1e-5 * noise[at],
          "noise");
    }
  }
}

TEST_CASE("CopiesWithoutLossHaveNoiseThatDivides") {
  Random random(35);
  TestTeam team(1);
  const TestMatrix source(Format::kQ4_0, 2, 256, random);
  const Copy copy(team.context, source.view, Format::kQ4_0);
  const std::vector<float> ones(256, 1.0F);
  std::array<float, 2> offset, noise;
  CopyStatistics(team.context, source.view, copy.view, ones.data(), ones.data(), offset.data(),
                 noise.data());
  REQUIRE_MESSAGE((noise[0] == 1e-30F && noise[1] == 1e-30F), "noise of an exact copy");
}

}  // namespace powerinfer::testing
