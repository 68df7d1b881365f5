// The blocked product kernel of every table this CPU can run, against double precision.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rounding.h"
#include "kernels/kernel_table.h"
#include "tests/testing.h"

namespace powerinfer::testing {
namespace {

std::vector<float> RandomFloats(std::int64_t n, Random& random) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = random.Uniform(-1.0F, 1.0F);
  return values;
}

struct Shape {
  std::int64_t rows, columns, depth;
};

/// Operands of one product and its expected result.
struct Product {
  Shape shape;
  std::vector<float> a;  // [rows, depth]
  std::vector<float> b;  // [depth, columns]

  Product(const Shape& s, Random& random)
      : shape(s),
        a(RandomFloats(s.rows * s.depth, random)),
        b(RandomFloats(s.depth * s.columns, random)) {}

  double Expected(std::int64_t i, std::int64_t j, double* magnitude) const {
    double sum = 0;
    *magnitude = 0;
    for (std::int64_t k = 0; k < shape.depth; ++k) {
      const double term = static_cast<double>(a[static_cast<std::size_t>(i * shape.depth + k)]) *
                          static_cast<double>(b[static_cast<std::size_t>(k * shape.columns + j)]);
      sum += term;
      *magnitude += std::fabs(term);
    }
    return sum;
  }
};

/// The kernel's rows operand: padded, and packed if the kernel packs.
std::vector<float> RowsOperand(const GemmKernel& gemm, const Product& product,
                               GemmPrecision precision) {
  const Shape& s = product.shape;
  const std::int64_t padded = RoundUp(s.rows, gemm.tile_rows);
  std::vector<float> rows(static_cast<std::size_t>(padded * gemm.block_depth));
  for (std::int64_t i = 0; i < s.rows; ++i) {
    std::memcpy(rows.data() + i * gemm.block_depth, product.a.data() + i * s.depth,
                static_cast<std::size_t>(s.depth) * sizeof(float));
  }
  if (gemm.pack_rows == nullptr) return rows;
  std::vector<float> packed(static_cast<std::size_t>(padded * gemm.block_depth));
  gemm.pack_rows(rows.data(), gemm.block_depth, padded, s.depth, precision, packed.data());
  return packed;
}

/// The panel, by either packing function.
std::vector<float> PanelOperand(const GemmKernel& gemm, const Product& product,
                                GemmPrecision precision, bool is_transposed) {
  const Shape& s = product.shape;
  std::vector<float> panel(static_cast<std::size_t>(gemm.panel_width * gemm.block_depth),
                           std::numeric_limits<float>::quiet_NaN());
  if (!is_transposed) {
    gemm.pack_panel(product.b.data(), s.columns, s.depth, s.columns, precision, panel.data());
    return panel;
  }
  std::vector<float> transposed(product.b.size());
  for (std::int64_t k = 0; k < s.depth; ++k) {
    for (std::int64_t j = 0; j < s.columns; ++j) {
      transposed[static_cast<std::size_t>(j * s.depth + k)] =
          product.b[static_cast<std::size_t>(k * s.columns + j)];
    }
  }
  gemm.pack_panel_transposed(transposed.data(), s.depth, s.depth, s.columns, precision,
                             panel.data());
  return panel;
}

std::vector<float> Run(const GemmKernel& gemm, const Product& product, GemmPrecision precision,
                       bool is_transposed, bool accumulate) {
  const Shape& s = product.shape;
  const std::int64_t padded = RoundUp(s.rows, gemm.tile_rows);
  const std::vector<float> rows = RowsOperand(gemm, product, precision);
  const std::vector<float> panel = PanelOperand(gemm, product, precision, is_transposed);
  std::vector<float> c(static_cast<std::size_t>(padded * gemm.panel_width), 0.5F);
  gemm.multiply(rows.data(), padded, panel.data(), s.depth, s.columns, precision, accumulate,
                c.data(), gemm.panel_width);
  return c;
}

std::vector<Shape> Shapes(const GemmKernel& gemm) {
  std::vector<Shape> shapes;
  for (const std::int64_t columns :
       {std::int64_t{1}, gemm.panel_width / 2, gemm.panel_width / 2 + 1, gemm.panel_width}) {
    for (const std::int64_t depth : {std::int64_t{1}, std::int64_t{31}, std::int64_t{33},
                                     std::int64_t{100}, gemm.block_depth}) {
      shapes.push_back({1, columns, depth});
      shapes.push_back({gemm.tile_rows * 3 - 1, columns, depth});
    }
  }
  return shapes;
}

/// bfloat16 keeps 8 bits: two factors are off by up to 2^-8 each; with low parts by about 2^-16.
/// Kernels without low parts are off by as much with kSplit.
double Tolerance(const GemmKernel& gemm, GemmPrecision precision) {
  if (gemm.pack_rows == nullptr) return 1e-6;
  const bool has_low_parts = gemm.split_bytes > gemm.single_bytes;
  return precision == GemmPrecision::kSingle || !has_low_parts ? 0x1p-7 + 0x1p-15 : 0x1p-15;
}

std::string NameOf(const GemmKernel& gemm) {
  return (gemm.pack_rows == nullptr ? "f32 " : "bf16 ") + std::string(gemm.name);
}

/// Every kernel of every table of this CPU.
std::vector<GemmKernel> AllGemms() {
  std::vector<GemmKernel> kernels;
  for (const KernelTable* table : AvailableKernels()) {
    kernels.push_back(table->gemm);
    if (table->bf16.multiply != nullptr) kernels.push_back(table->bf16);
  }
  return kernels;
}

void CheckProduct(const GemmKernel& gemm, const Shape& shape, GemmPrecision precision) {
  Random random(static_cast<std::uint64_t>(shape.rows * 7919 + shape.depth));
  const Product product(shape, random);
  for (const bool is_transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const std::vector<float> c = Run(gemm, product, precision, is_transposed, accumulate);
      for (std::int64_t i = 0; i < shape.rows; ++i) {
        for (std::int64_t j = 0; j < shape.columns; ++j) {
          double magnitude = 0;
          const double expected = product.Expected(i, j, &magnitude) + (accumulate ? 0.5 : 0.0);
          const double got =
              static_cast<double>(c[static_cast<std::size_t>(i * gemm.panel_width + j)]);
          REQUIRE_MESSAGE(
              std::fabs(got - expected) <= Tolerance(gemm, precision) * magnitude + 1e-7,
              NameOf(gemm), " depth ", shape.depth, " at ", i, ", ", j, ": got ", got,
              ", expected ", expected);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("GemmMatchesDoublePrecision") {
  for (const GemmKernel& gemm : AllGemms()) {
    for (const Shape& shape : Shapes(gemm)) {
      CheckProduct(gemm, shape, GemmPrecision::kSplit);
      CheckProduct(gemm, shape, GemmPrecision::kSingle);
    }
  }
}

TEST_CASE("GemmBitsDoNotDependOnPlaceInTile") {
  for (const GemmKernel& gemm : AllGemms()) {
    Random random(5);
    Product whole({gemm.tile_rows * 2, gemm.panel_width, 77}, random);
    const std::vector<float> c = Run(gemm, whole, GemmPrecision::kSplit, false, false);
    Product alone({1, 1, 77}, random);
    const std::int64_t row = gemm.tile_rows + 1;
    const std::int64_t column = gemm.panel_width - 1;
    for (std::int64_t k = 0; k < 77; ++k) {
      alone.a[static_cast<std::size_t>(k)] = whole.a[static_cast<std::size_t>(row * 77 + k)];
      alone.b[static_cast<std::size_t>(k)] =
          whole.b[static_cast<std::size_t>(k * gemm.panel_width + column)];
    }
    const std::vector<float> one = Run(gemm, alone, GemmPrecision::kSplit, true, false);
    REQUIRE_MESSAGE(c[static_cast<std::size_t>(row * gemm.panel_width + column)] == one[0],
                    NameOf(gemm), ": another place gave other bits");
  }
}

TEST_CASE("GemmKeepsInfinityAndNaN") {
  for (const GemmKernel& gemm : AllGemms()) {
    for (const float special :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Random random(6);
      Product product({2, 2, 40}, random);
      product.a[3] = special;
      for (const GemmPrecision precision : {GemmPrecision::kSingle, GemmPrecision::kSplit}) {
        const std::vector<float> c = Run(gemm, product, precision, false, false);
        REQUIRE_MESSAGE((!std::isfinite(c[0]) && !std::isfinite(c[1])), NameOf(gemm),
                        ": a special value was lost");
        REQUIRE_MESSAGE(std::isfinite(c[static_cast<std::size_t>(gemm.panel_width)]), NameOf(gemm),
                        ": a special value leaked into another row");
      }
    }
  }
}

TEST_CASE("TransposeAddsBiasAndReachesTails") {
  for (const GemmKernel& gemm : AllGemms()) {
    for (const std::int64_t rows : {1, 16, 37}) {
      for (const std::int64_t columns : {1, 16, 35}) {
        Random random(7);
        const std::vector<float> in = RandomFloats(rows * columns, random);
        const std::vector<float> bias = RandomFloats(rows, random);
        std::vector<float> out(in.size());
        for (const bool has_bias : {false, true}) {
          gemm.transpose(in.data(), columns, rows, columns, has_bias ? bias.data() : nullptr,
                         out.data(), rows);
          for (std::int64_t i = 0; i < rows; ++i) {
            for (std::int64_t j = 0; j < columns; ++j) {
              const float expected = in[static_cast<std::size_t>(i * columns + j)] +
                                     (has_bias ? bias[static_cast<std::size_t>(i)] : 0.0F);
              REQUIRE_MESSAGE(out[static_cast<std::size_t>(j * rows + i)] == expected, NameOf(gemm),
                              ": wrong element");
            }
          }
        }
      }
    }
  }
}

}  // namespace powerinfer::testing
