// Linear and BlockedTransposedLinear on every table, format and path, against double precision.
#include "ops/linear.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ops/blocked_product.h"
#include "tests/ops_testing.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

/// One token's activations as rows of this kind multiply them, in double precision.
std::vector<double> MultipliedActivations(const KernelTable& kernels, const float* x,
                                          std::int64_t n, Format format, RowKind kind) {
  std::vector<double> values(x, x + n);
  if (format == Format::kSign) {
    double sum = 0.0;
    for (const double value : values) sum += std::fabs(value);
    for (double& value : values) value = std::copysign(sum / static_cast<double>(n), value);
  }
  if (!InfoOf(format).uses_int8_activations()) return values;
  if (kind == RowKind::kPrompt && !kernels.UsesInt8Products(format)) return values;
  std::vector<std::int8_t> quantized(static_cast<std::size_t>(n));
  std::vector<float> scales(static_cast<std::size_t>(n / 32));
  std::vector<float> sums(static_cast<std::size_t>(n / 32));
  kernels.quantize(x, n, quantized.data(), scales.data(), sums.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(scales[i / 32]) * quantized[i];
  }
  return values;
}

/// Kernels add in f32 (1e-5); prompt rows may multiply in bfloat16 (two factors, 2^-8), or in
/// activations rounded to it (one factor, half a unit of 8 bits).
double Tolerance(const KernelTable& kernels, Format format, RowKind kind) {
  if (kind == RowKind::kPrompt && RoundsToBf16(kernels, format)) return 0x1p-9 + 1e-5;
  const bool is_bfloat = kind == RowKind::kPrompt && kernels.name == "amx";
  if (!is_bfloat) return 1e-5;
  return InfoOf(format).block_size > 1 ? 0x1p-7 + 0x1p-15 : 0x1p-15;
}

void CheckItem(const KernelTable& kernels, const TestMatrix& matrix, const std::vector<float>& bias,
               const TestRows& x, RowKind kind, const TestRows& out) {
  const Format format = matrix.view.format;
  for (std::int64_t t = 0; t < x.view.rows; ++t) {
    const std::vector<double> values =
        MultipliedActivations(kernels, x.view.Row(t), x.view.columns, format, kind);
    for (std::int64_t r = 0; r < matrix.view.rows; ++r) {
      double sum = static_cast<double>(bias[static_cast<std::size_t>(r)]);
      double magnitude = std::fabs(sum);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double term = matrix.At(r, static_cast<std::int64_t>(i)) * values[i];
        sum += term;
        magnitude += std::fabs(term);
      }
      const double error = std::fabs(static_cast<double>(out.view.Row(t)[r]) - sum);
      REQUIRE_MESSAGE(error <= Tolerance(kernels, format, kind) * magnitude,
                      std::string(kernels.name), " ", std::string(InfoOf(format).name), ": row ", r,
                      " of token ", t, " of ", x.view.rows, " is off by ", error);
    }
  }
}

struct LinearCase {
  const KernelTable* kernels;
  Format format;
  std::int64_t columns;
  std::int64_t num_tokens;
  RowKind kind = RowKind::kPrompt;
};

/// Two items of different heights on one input, the second without bias, on teams of 1 to 3.
void CheckLinear(const LinearCase& c) {
  Random random(static_cast<std::uint64_t>(c.columns * 100 + c.num_tokens));
  const TestMatrix first(c.format, 37, c.columns, random);
  const TestMatrix second(c.format, 5, c.columns, random);
  const std::vector<float> bias = RandomFloats(37, random);
  const std::vector<float> none(5, 0.0F);
  const TestRows x(c.num_tokens, c.columns, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 2, 3}) {
    TestTeam team(threads, *c.kernels, c.kind);
    TestRows out1(c.num_tokens, 37);
    TestRows out2(c.num_tokens, 5);
    const std::array<LinearItem, 2> items = {LinearItem{first.view, bias.data(), out1.view},
                                             LinearItem{second.view, nullptr, out2.view}};
    Linear(team.context, x.ReadOnly(), items);
    if (threads == 1) {
      CheckItem(*c.kernels, first, bias, x, c.kind, out1);
      CheckItem(*c.kernels, second, none, x, c.kind, out2);
      before = out1.data;
    }
    REQUIRE_MESSAGE(SameBits(before, out1.data), "the number of threads changed bits");
  }
}

void CheckTransposed(const LinearCase& c, std::int64_t rows) {
  Random random(static_cast<std::uint64_t>(c.columns + rows));
  const TestMatrix matrix(c.format, rows, c.columns, random);
  const std::vector<float> bias = RandomFloats(c.columns, random);
  const TestRows x(c.num_tokens, rows, random);
  std::vector<float> before;
  for (const std::int32_t threads : {1, 3}) {
    TestTeam team(threads, *c.kernels);
    TestRows out(c.num_tokens, c.columns);
    BlockedTransposedLinear(team.context, x.ReadOnly(), matrix.view, bias.data(), out.view);
    if (threads == 1) before = out.data;
    REQUIRE_MESSAGE(SameBits(before, out.data), "the number of threads changed bits");
    for (std::int64_t t = 0; t < c.num_tokens; ++t) {
      for (std::int64_t j = 0; j < c.columns; j += 7) {
        double sum = static_cast<double>(bias[static_cast<std::size_t>(j)]);
        double magnitude = std::fabs(sum);
        for (std::int64_t i = 0; i < rows; ++i) {
          const double term = matrix.At(i, j) * static_cast<double>(x.view.Row(t)[i]);
          sum += term;
          magnitude += std::fabs(term);
        }
        const double error = std::fabs(static_cast<double>(out.view.Row(t)[j]) - sum);
        REQUIRE_MESSAGE(error <= Tolerance(*c.kernels, c.format, RowKind::kPrompt) * magnitude,
                        std::string(c.kernels->name), " ", std::string(InfoOf(c.format).name),
                        " transposed: column ", j, " is off by ", error);
      }
    }
  }
}

}  // namespace

TEST_CASE("LinearMatchesDoublePrecisionOnAnyTeam") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      for (const std::int64_t num_tokens : {1, 2, 4, 5, 33, 100}) {
        const std::int64_t block = InfoOf(format).block_size;
        for (const RowKind kind : {RowKind::kDecode, RowKind::kPrompt}) {
          CheckLinear({table, format, block == 1 ? 67 : block * 3, num_tokens, kind});
          if (num_tokens == 33) {
            CheckLinear({table, format, 768, num_tokens, kind});
            CheckLinear({table, format, OddWidth(format), num_tokens, kind});
          }
          // Longer than the piece of columns that int8 products go through at a time.
          if (num_tokens == 5 && block > 1) CheckLinear({table, format, 4096 + 256, 5, kind});
        }
      }
    }
  }
}

TEST_CASE("DecodeRowsHaveTheSameBitsOnTeamsOfAnySize") {
  constexpr std::int64_t kColumns = 512;
  for (const Format format : {Format::kQ4_0, Format::kQ8_0, Format::kF16}) {
    Random random(16);
    const TestMatrix wide(format, 700, kColumns, random);
    const TestMatrix narrow(format, 90, kColumns, random);
    const MatrixView empty{format, wide.view.data, 0, kColumns, wide.view.row_bytes};
    const TestRows x(2, kColumns, random);
    std::vector<float> before;
    for (std::int32_t threads = 1; threads <= 16; ++threads) {
      TestTeam team(threads);
      TestRows out1(2, 700);
      TestRows none(2, 0);
      TestRows out2(2, 90);
      const std::array<LinearItem, 4> items = {
          LinearItem{empty, nullptr, none.view}, LinearItem{wide.view, nullptr, out1.view},
          LinearItem{empty, nullptr, none.view}, LinearItem{narrow.view, nullptr, out2.view}};
      Linear(team.context, x.ReadOnly(), items);
      std::vector<float> both = out1.data;
      both.insert(both.end(), out2.data.begin(), out2.data.end());
      if (threads == 1) before = both;
      REQUIRE_MESSAGE(SameBits(before, both), std::string(InfoOf(format).name), ", ", threads,
                      " threads");
      Linear(team.context, x.ReadOnly(), std::span(items.data(), 1));  // nothing to do
    }
    for (std::int64_t r = 0; r < 700; ++r) {
      REQUIRE_MESSAGE(std::isfinite(before[static_cast<std::size_t>(r)]), "row ", r, " was left");
    }
  }
}

TEST_CASE("TransposedProductMatchesDoublePrecision") {
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format == Format::kSign) continue;  // multiplies signs: never in blocks
      const std::int64_t block = InfoOf(format).block_size;
      CheckTransposed({table, format, block == 1 ? 275 : block * 9 / (block > 32 ? 3 : 1), 9}, 301);
      CheckTransposed({table, format, 256, 33}, 530);
      CheckTransposed({table, format, OddWidth(format), 3}, 70);
    }
  }
}

TEST_CASE("LinearSplitsLongPromptsWithoutChangingResults") {
  Random random(11);
  const TestMatrix matrix(Format::kQ8_0, 9, 64, random);
  const std::int64_t rest = 70;
  const TestRows x(kMaxBlockTokens + rest, 64, random);
  TestTeam team(2, BestKernels(), RowKind::kPrompt);
  TestRows whole(x.view.rows, 9);
  const LinearItem all{matrix.view, nullptr, whole.view};
  Linear(team.context, x.ReadOnly(), std::span(&all, 1));
  TestRows tail(rest, 9);
  const LinearItem last{matrix.view, nullptr, tail.view};
  Linear(team.context, {x.view.Row(kMaxBlockTokens), rest, 64, x.view.stride}, std::span(&last, 1));
  for (std::int64_t t = 0; t < rest; ++t) {
    REQUIRE_MESSAGE(
        std::memcmp(whole.view.Row(kMaxBlockTokens + t), tail.view.Row(t), 9 * sizeof(float)) == 0,
        "a token's result depends on the tokens beside it");
  }
}

TEST_CASE("PromptRowsGiveTheSameBitsHoweverTheyAreCut") {
  constexpr std::int64_t kTokens = 100;
  for (const KernelTable* table : AvailableKernels()) {
    for (const Format format : AllFormats()) {
      if (format == Format::kSign) continue;
      const bool has_blocks = InfoOf(format).block_size > 1;
      for (const std::int64_t columns : {std::int64_t{has_blocks ? 256 : 67},
                                         has_blocks ? OddWidth(format) : std::int64_t{600}}) {
        Random random(14);
        const TestMatrix matrix(format, 77, columns, random);
        const std::vector<float> bias = RandomFloats(77, random);
        const TestRows x(kTokens, columns, random);
        TestTeam team(2, *table, RowKind::kPrompt);
        TestRows whole(kTokens, 77);
        const LinearItem all{matrix.view, bias.data(), whole.view};
        Linear(team.context, x.ReadOnly(), std::span(&all, 1));
        for (const std::int64_t cut : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33}) {
          for (const std::int64_t first : {std::int64_t{0}, kTokens - cut}) {
            TestRows part(cut, 77);
            const LinearItem few{matrix.view, bias.data(), part.view};
            Linear(team.context, {x.view.Row(first), cut, columns, x.view.stride},
                   std::span(&few, 1));
            for (std::int64_t t = 0; t < cut; ++t) {
              REQUIRE_MESSAGE(
                  std::memcmp(part.view.Row(t), whole.view.Row(first + t), 77 * sizeof(float)) == 0,
                  std::string(table->name), " ", std::string(InfoOf(format).name), ": ", cut,
                  " tokens from ", first, " gave token ", t, " other bits");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("PromptRowsHaveTheSameBitsBesideWeightsOfAnotherFormat") {
  for (const KernelTable* table : AvailableKernels()) {
    Random random(15);
    const TestMatrix bf16(Format::kBF16, 19, 96, random);
    const TestMatrix f16(Format::kF16, 19, 96, random);
    const TestRows x(21, 96, random);
    TestTeam team(2, *table, RowKind::kPrompt);
    for (const TestMatrix* matrix : {&bf16, &f16}) {
      TestRows alone(21, 19);
      TestRows together(21, 19);
      TestRows other(21, 19);
      const LinearItem one{matrix->view, nullptr, alone.view};
      Linear(team.context, x.ReadOnly(), std::span(&one, 1));
      const TestMatrix* beside = matrix == &bf16 ? &f16 : &bf16;
      const std::array<LinearItem, 2> two = {LinearItem{beside->view, nullptr, other.view},
                                             LinearItem{matrix->view, nullptr, together.view}};
      Linear(team.context, x.ReadOnly(), two);
      for (std::int64_t t = 0; t < 21; ++t) {
        REQUIRE_MESSAGE(
            std::memcmp(alone.view.Row(t), together.view.Row(t), 19 * sizeof(float)) == 0,
            std::string(table->name), " ", std::string(InfoOf(matrix->view.format).name));
      }
    }
  }
}

TEST_CASE("SignsGiveTheSameBitsForAnyNumberOfTokens") {
  for (const KernelTable* table : AvailableKernels()) {
    Random random(12);
    const TestMatrix matrix(Format::kSign, 9, 512, random);
    const TestRows x(150, 512, random);
    TestTeam team(2, *table);
    TestRows together(150, 9);
    const LinearItem all{matrix.view, nullptr, together.view};
    Linear(team.context, x.ReadOnly(), std::span(&all, 1));
    for (std::int64_t t = 0; t < 150; t += 7) {
      TestRows alone(1, 9);
      const LinearItem one{matrix.view, nullptr, alone.view};
      Linear(team.context, {x.view.Row(t), 1, 512, x.view.stride}, std::span(&one, 1));
      REQUIRE_MESSAGE(std::memcmp(alone.view.Row(0), together.view.Row(t), 9 * sizeof(float)) == 0,
                      "signs depend on the batch");
    }
  }
}

TEST_CASE("WorkspaceGrowsOnceAndIsAligned") {
  Workspace workspace;
  auto* small = workspace.Get<float>(Scratch::kGate, 10);
  REQUIRE_MESSAGE(reinterpret_cast<std::uintptr_t>(small) % 64 == 0, "not aligned");
  auto* large = workspace.Get<float>(Scratch::kGate, 100000);
  large[99999] = 1.0F;
  const std::size_t capacity = workspace.Capacity();
  REQUIRE_MESSAGE(workspace.Get<float>(Scratch::kGate, 50) == large,
                  "a smaller request moved the buffer");
  REQUIRE_MESSAGE(workspace.Capacity() == capacity, "a smaller request allocated");
}

}  // namespace powerinfer::testing
