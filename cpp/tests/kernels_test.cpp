// Products and decoding of every table this CPU can run, against double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "quant/superblock.h"
#include "tests/kernels_testing.h"
#include "tests/reference_formats.h"

namespace powerinfer::testing {
namespace {

using namespace kernel;  // NOLINT: all of it is for these tests

/// Widths with whole groups of 256, with tails and without a whole group.
std::vector<std::int64_t> Widths(Format format) {
  const std::int64_t block = InfoOf(format).block_size;
  if (block == 1)
    return {1, 2, 3, 7, 8, 15, 16, 31, 33, 63, 64, 65, 100, 129, 256, 515, 1055, 4613};
  if (block == 32) return {32, 64, 96, 224, 256, 288, 512, 736, 1024};
  if (CanRepack(FileFormat(format), 288)) return {256, 288, 480, 512, 704, 768, 1024};
  return {256, 512, 768, 1024};
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
    const double weight = WeightAt(format, row, i, columns);
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
    const auto want = static_cast<float>(WeightAt(format, rows.Row(0), i, columns));
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
    const double term = static_cast<double>(scale) * WeightAt(format, rows.Row(0), i, columns);
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

/// Rows added in a group have, for every token, the bits of its own rows one by one.
void CheckAddRowGroup(const KernelTable& table, Format format, std::int64_t columns,
                      Random& random) {
  const auto index = static_cast<std::size_t>(format);
  const Rows rows(format, columns, kMaxGroupRows, random);
  RowGroup group;
  group.num_rows = kMaxGroupRows;
  group.num_next = 1;
  group.next[0] = rows.Row(0);
  for (std::int64_t r = 0; r < kMaxGroupRows; ++r) group.rows[r] = rows.Row(r);
  constexpr std::int64_t kTokens = 3;
  std::vector<std::vector<float>> want, got;
  std::vector<GroupTerms> terms(kTokens);
  for (std::int64_t t = 0; t < kTokens; ++t) want.push_back(RandomValues(columns, random));
  got = want;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto at = static_cast<std::size_t>(t);
    terms[at].y = got[at].data();
    for (std::int64_t r = t; r < kMaxGroupRows; r += t + 1) {
      const float factor = random.Uniform(-3.0F, 3.0F);
      terms[at].places[terms[at].count] = static_cast<std::uint8_t>(r);
      terms[at].factors[terms[at].count++] = factor;
      table.axpy_row[index](rows.Row(r), columns, factor, want[at].data());
    }
  }
  table.add_row_group[index](group, columns, terms.data(), kTokens);
  for (std::size_t t = 0; t < want.size(); ++t) {
    REQUIRE_MESSAGE(std::memcmp(want[t].data(), got[t].data(), got[t].size() * sizeof(float)) == 0,
                    Where(table, format, columns), ": a group of rows has other bits");
  }
}

/// Sums of repacked rows have the bits that rows of the file's blocks give.
void CheckAxpyOfSuperblocks(const KernelTable& table, Format format, std::int64_t columns,
                            Random& random) {
  const Format packed = SuperblockFormat(format);
  if (!CanRepack(format, columns)) return;
  const Rows rows(format, columns, 1, random);
  std::vector<std::uint8_t> repacked(static_cast<std::size_t>(RowBytes(packed, columns)));
  RepackToSuperblocks(format, rows.Row(0), 1, columns, repacked.data());
  std::vector<float> want = RandomValues(columns, random);
  std::vector<float> got = want;
  table.axpy_row[static_cast<std::size_t>(format)](rows.Row(0), columns, 1.7F, want.data());
  table.axpy_row[static_cast<std::size_t>(packed)](repacked.data(), columns, 1.7F, got.data());
  REQUIRE_MESSAGE(std::memcmp(want.data(), got.data(), got.size() * sizeof(float)) == 0,
                  Where(table, format, columns), ": superblocks have other bits");
}

/// A row as `format` has it: `blocks` of a file, repacked for superblocks.
std::vector<std::uint8_t> RowOf(Format format, const std::vector<std::uint8_t>& blocks,
                                std::int64_t columns) {
  if (FileFormat(format) == format) return blocks;
  std::vector<std::uint8_t> row(blocks.size());
  RepackToSuperblocks(FileFormat(format), blocks.data(), 1, columns, row.data());
  return row;
}

/// The last blocks of a row count as if blocks of zeros followed them.
void CheckTail(const KernelTable& table, Format format, std::int64_t columns, Random& random) {
  const Format file_format = FileFormat(format);
  // MXFP4's last group begins before the tail.
  if (InfoOf(file_format).block_size != 32 || format == Format::kMXFP4) return;
  const std::int64_t whole = (columns + 255) / 256 * 256;
  std::vector<float> values = RandomValues(columns, random);
  const Activations x(table, values);
  values.resize(static_cast<std::size_t>(whole));
  const Activations padded_x(table, values);
  std::vector<std::uint8_t> blocks = RandomRow(file_format, columns, random);
  const auto row = RowOf(format, blocks, columns);
  blocks.resize(static_cast<std::size_t>(RowBytes(file_format, whole)));
  const auto padded = RowOf(format, blocks, whole);
  const auto dot = table.dot_rows[static_cast<std::size_t>(format)];
  const ActivationRow view = x.View();
  const ActivationRow padded_view = padded_x.View();
  float got = kNaN;
  float want = kNaN;
  dot(row.data(), 0, 1, columns, &view, 1, &got, 1, 0);
  dot(padded.data(), 0, 1, whole, &padded_view, 1, &want, 1, 0);
  REQUIRE_MESSAGE(std::memcmp(&got, &want, sizeof got) == 0, Where(table, format, columns),
                  ": the tail gives ", got, ", with zeros behind it ", want);
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
TEST_CASE("RowsAddedInAGroupHaveTheBitsOfSingleRows") { ForEveryWidth(CheckAddRowGroup); }
TEST_CASE("TailsHaveTheBitsOfRowsThatEndInZeros") { ForEveryWidth(CheckTail); }
TEST_CASE("AxpyOfSuperblocksHasTheBitsOfBlocks") { ForEveryWidth(CheckAxpyOfSuperblocks); }

/// A row of 256 weights with one token, as prompt rows multiply.
float Int8Product(const Int8Kernel& kernel, Format format, const std::vector<std::uint8_t>& row,
                  const ActivationRow& x) {
  alignas(64) std::uint8_t unpacked[4096];
  alignas(64) float sums[64];
  const auto index = static_cast<std::size_t>(format);
  REQUIRE(kernel.unpacked_bytes[index](256) <= std::int64_t{sizeof unpacked});
  REQUIRE(kernel.lanes <= 64);
  kernel.unpack[index](row.data(), 256, unpacked);
  float got = kNaN;
  kernel.multiply[index](unpacked, 1, 256, &x, 1, &got, 1, sums);
  return got;
}

/// Checks that two rows with five tokens give the results of one row with one token.
void CheckTile(const KernelTable& table, Format format, const std::vector<std::uint8_t>& row,
               const ActivationRow& x, float expected) {
  constexpr std::int64_t kRows = 2, kTokens = 5;
  std::vector<std::uint8_t> rows = row;
  rows.insert(rows.end(), row.begin(), row.end());
  const std::vector<ActivationRow> tokens(kTokens, x);
  std::vector<float> out(kRows * kTokens, kNaN);
  table.dot_rows[static_cast<std::size_t>(format)](rows.data(), std::ssize(row), kRows, 256,
                                                   tokens.data(), kTokens, out.data(), kRows, 2048);
  for (const float got : out) {
    REQUIRE_MESSAGE(got == expected, Where(table, format, 256), ": a tile differs");
  }
}

/// Bytes at the start of a block, or of a superblock, that may be scales.
std::int64_t HeadBytes(Format format) {
  if (InfoOf(format).block_size == 32) return 8;
  const Format file_format = FileFormat(format);
  return file_format == Format::kQ4_1 || file_format == Format::kQ5_1 ? 32 : 16;
}

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
            const std::int64_t at = i % InfoOf(format).block_bytes;
            const bool is_scale =
                FileFormat(format) == Format::kQ6_K ? at >= 192 : at < HeadBytes(format);
            if (!is_scale) row[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(fill);
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
          CheckTile(*table, format, row, view, got);
          if (!table->int8.Takes(format)) continue;
          CheckDot(format, row.data(), 256, x, Int8Product(table->int8, format, row, view),
                   Where(*table, format, 256) + " as prompt");
        }
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer::testing
