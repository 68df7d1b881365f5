// The f32 matrix product of gemm.h on the compiler's vector type, compiled once per instruction
// set.
//
// Include once per file after defining GEMM_LANES (f32 per vector), GEMM_VECTORS (vectors per
// panel), GEMM_TILE_ROWS and GEMM_MULTIPLY_ADD(a, b, c) (a * b + c on vectors). The accumulators,
// GEMM_VECTORS * GEMM_TILE_ROWS, and GEMM_VECTORS + 1 more must fit in the registers. Everything
// has internal linkage (see isa_tables.h).

#include <cstdint>
#include <string_view>

#include "kernels/gemm.h"
#include "kernels/isa/shared/activation-inl.h"
#include "kernels/isa/shared/gemm_few-inl.h"
#include "kernels/isa/shared/gemm_transpose-inl.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kVectors = GEMM_VECTORS;
constexpr std::int64_t kTileRows = GEMM_TILE_ROWS;
constexpr std::int64_t kPanelWidth = kLanes * kVectors;

/// One register tile: kTileRows rows by kUsed vectors of columns.
template <std::int64_t kUsed>
GEMM_INLINE void MultiplyTile(const float* a, const float* panel, std::int64_t depth,
                              bool accumulate, float* c, std::int64_t c_stride) {
  Vec sums[kTileRows][kUsed];
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) {
      sums[r][v] = accumulate ? Load(c + r * c_stride + v * kLanes) : Vec{};
    }
  }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < depth; ++k) {
    Vec b[kUsed];
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) b[v] = Load(panel + k * kPanelWidth + v * kLanes);
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (std::int64_t v = 0; v < kUsed; ++v) {
        sums[r][v] = GEMM_MULTIPLY_ADD(a[r * kBlockDepth + k] - Vec{}, b[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 16
  for (std::int64_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::int64_t v = 0; v < kUsed; ++v) Store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

template <std::int64_t kUsed>
void MultiplyColumns(const float* a, std::int64_t num_rows, const float* panel, std::int64_t depth,
                     bool accumulate, float* c, std::int64_t c_stride) {
  for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
    MultiplyTile<kUsed>(a + row * kBlockDepth, panel, depth, accumulate, c + row * c_stride,
                        c_stride);
  }
}

void Multiply(const void* rows, std::int64_t num_rows, const void* panel, std::int64_t depth,
              std::int64_t num_columns, GemmPrecision, bool accumulate, float* c,
              std::int64_t c_stride) {
  const auto* a = static_cast<const float*>(rows);
  const auto* b = static_cast<const float*>(panel);
  if (num_columns <= kLanes) {
    MultiplyColumns<1>(a, num_rows, b, depth, accumulate, c, c_stride);
  } else {
    MultiplyColumns<kVectors>(a, num_rows, b, depth, accumulate, c, c_stride);
  }
}

void ClearColumns(float* panel, std::int64_t depth, std::int64_t first) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t j = first; j < kPanelWidth; ++j) panel[k * kPanelWidth + j] = 0.0F;
  }
}

void PackPanel(const float* b, std::int64_t stride, std::int64_t depth, std::int64_t num_columns,
               GemmPrecision, void* panel) {
  auto* out = static_cast<float*>(panel);
  for (std::int64_t k = 0; k < depth; ++k) {
    const float* row = b + k * stride;
    if (num_columns == kPanelWidth) {
      for (std::int64_t j = 0; j < kPanelWidth; j += kLanes) {
        Store(out + k * kPanelWidth + j, Load(row + j));
      }
    } else {
      for (std::int64_t j = 0; j < num_columns; ++j) out[k * kPanelWidth + j] = row[j];
    }
  }
  if (num_columns < kPanelWidth) ClearColumns(out, depth, num_columns);
}

void PackPanelTransposed(const float* b, std::int64_t stride, std::int64_t depth,
                         std::int64_t num_columns, GemmPrecision, void* panel) {
  auto* out = static_cast<float*>(panel);
  Transpose(b, stride, num_columns, depth, nullptr, out, kPanelWidth);
  if (num_columns < kPanelWidth) ClearColumns(out, depth, num_columns);
}

GemmKernel MakeGemm(std::string_view name, std::int64_t block_rows) {
  GemmKernel kernel;
  kernel.name = name;
  kernel.panel_width = kPanelWidth;
  kernel.tile_rows = kTileRows;
  kernel.block_rows = block_rows;
  kernel.group_rows = kTileRows;
  kernel.block_depth = kBlockDepth;
  kernel.pack_panel = PackPanel;
  kernel.pack_panel_transposed = PackPanelTransposed;
  kernel.multiply = Multiply;
  kernel.multiply_few = MultiplyFew;
  kernel.few_rows = kLanes;
  kernel.transpose = Transpose;
  kernel.silu = Silu;
  kernel.gelu = Gelu;
  return kernel;
}

}  // namespace
}  // namespace powerinfer
