// Products for many tokens with weights as panels of the kernel: out = x * matrix.
#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Columns in one chunk: several cache lines of every row, whole blocks of every format.
constexpr std::int64_t kChunkColumns = 256;
// Rows dequantized at a time, 32 KiB of f32.
constexpr std::int64_t kSliceRows = 32;

/// x of one block of tokens as the kernel's rows, padded: [depth block][tokens, depth].
struct PackedRows {
  Blocking blocking;
  std::int64_t num_tokens = 0;
  std::int64_t padded_tokens = 0;
  std::uint8_t* data = nullptr;

  std::uint8_t* Block(std::int64_t block) const {
    return data + blocking.BlockOffset(block, padded_tokens);
  }
};

void PackRowTile(const PackedRows& packed, RowsView<const float> x, std::int64_t block,
                 std::int64_t token, float* padded) {
  const Blocking& blocking = packed.blocking;
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t depth = blocking.BlockDepth(block);
  const std::int64_t stride = kernel.block_depth;
  // Without pack_rows rows stand block_depth apart even in a last, shorter block.
  float* rows = padded;
  if (kernel.pack_rows == nullptr) {
    rows = reinterpret_cast<float*>(packed.Block(block)) + token * stride;
  }
  for (std::int64_t r = 0; r < kernel.tile_rows; ++r) {
    if (token + r < x.rows) {
      std::copy_n(x.Row(token + r) + block * stride, depth, rows + r * stride);
    } else {
      std::fill_n(rows + r * stride, depth, 0.0F);
    }
  }
  if (kernel.pack_rows != nullptr) {
    kernel.pack_rows(
        rows, stride, kernel.tile_rows, depth, blocking.precision,
        packed.Block(block) + token * blocking.PaddedDepth(depth) * blocking.ElementBytes());
  }
}

PackedRows PackRows(const OpContext& context, const Blocking& blocking, RowsView<const float> x) {
  const GemmKernel& kernel = blocking.kernel;
  PackedRows packed{blocking, x.rows, RoundUp(x.rows, kernel.tile_rows), nullptr};
  packed.data = context.workspace.Get<std::uint8_t>(
      Scratch::kPackedInput, blocking.BlockOffset(blocking.NumBlocks(), packed.padded_tokens));
  const std::int64_t tile_size = kernel.tile_rows * kernel.block_depth;
  auto* padded =
      context.workspace.Get<float>(Scratch::kThreadBlocks, tile_size * context.team.NumThreads());
  const std::int64_t num_tiles = packed.padded_tokens / kernel.tile_rows;
  const auto pack = [&](std::int64_t chunk, std::int32_t thread) {
    PackRowTile(packed, x, chunk / num_tiles, chunk % num_tiles * kernel.tile_rows,
                padded + thread * tile_size);
  };
  context.team.ParallelFor(num_tiles * blocking.NumBlocks(), std::ref(pack));
  return packed;
}

/// One thread's scratch for a chunk of columns.
struct ColumnScratch {
  float* sums;           // f32[padded_tokens, kSumsStride]
  float* slice;          // f32[kSliceRows, kChunkColumns]
  std::uint8_t* panels;  // [panel][block_depth, panel_width]

  static constexpr std::int64_t kSumsStride = kChunkColumns + 16;

  static std::int64_t PanelBytes(const Blocking& blocking) {
    return blocking.kernel.block_depth * blocking.kernel.panel_width * blocking.ElementBytes();
  }
  static std::int64_t TotalBytes(const PackedRows& x) {
    const std::int64_t num_panels = DivideUp(kChunkColumns, x.blocking.kernel.panel_width);
    const std::int64_t floats = x.padded_tokens * kSumsStride + kSliceRows * kChunkColumns;
    return RoundUp(floats, 16) * std::int64_t{sizeof(float)} + num_panels * PanelBytes(x.blocking);
  }
  static ColumnScratch At(std::uint8_t* base, const PackedRows& x) {
    auto* sums = reinterpret_cast<float*>(base);
    float* slice = sums + x.padded_tokens * kSumsStride;
    return {sums, slice, reinterpret_cast<std::uint8_t*>(slice + kSliceRows * kChunkColumns)};
  }
};

/// Dequantizes columns [column, column + count) of one depth block and packs them into panels.
void LoadPanels(const MatrixView& matrix, const Blocking& blocking, std::int64_t block,
                std::int64_t column, std::int64_t count, const ColumnScratch& scratch) {
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t depth = blocking.BlockDepth(block);
  const std::int64_t first_row = block * kernel.block_depth;
  for (std::int64_t k = 0; k < depth; k += kSliceRows) {
    const std::int64_t rows = std::min(kSliceRows, depth - k);
    for (std::int64_t r = 0; r < rows; ++r) {
      DequantizePiece(blocking.kernels, matrix, {nullptr, matrix.rows}, first_row + k + r, column,
                      count, scratch.slice + r * kChunkColumns);
    }
    const std::int64_t offset = k * kernel.panel_width * blocking.ElementBytes();
    for (std::int64_t j = 0; j < count; j += kernel.panel_width) {
      kernel.pack_panel(
          scratch.slice + j, kChunkColumns, rows, std::min(kernel.panel_width, count - j),
          blocking.precision,
          scratch.panels + j / kernel.panel_width * scratch.PanelBytes(blocking) + offset);
    }
  }
}

void StoreColumns(const ColumnScratch& scratch, std::int64_t num_tokens, std::int64_t count,
                  const float* bias, float* out, std::int64_t out_stride) {
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const float* sums = scratch.sums + token * ColumnScratch::kSumsStride;
    float* to = out + token * out_stride;
    for (std::int64_t j = 0; j < count; ++j) to[j] = bias != nullptr ? sums[j] + bias[j] : sums[j];
  }
}

/// Columns [column, column + count) of out for all tokens of `x`.
void MultiplyPanels(const MatrixView& matrix, const PackedRows& x, std::int64_t column,
                    std::int64_t count, const ColumnScratch& scratch) {
  const Blocking& blocking = x.blocking;
  const GemmKernel& kernel = blocking.kernel;
  for (std::int64_t block = 0; block < blocking.NumBlocks(); ++block) {
    LoadPanels(matrix, blocking, block, column, count, scratch);
    for (std::int64_t j = 0; j < count; j += kernel.panel_width) {
      kernel.multiply(x.Block(block), x.padded_tokens,
                      scratch.panels + j / kernel.panel_width * scratch.PanelBytes(blocking),
                      blocking.BlockDepth(block), count - j, blocking.precision, block > 0,
                      scratch.sums + j, ColumnScratch::kSumsStride);
    }
  }
}

}  // namespace

void BlockedTransposedLinear(const OpContext& context, RowsView<const float> x,
                             const MatrixView& matrix, const float* bias, RowsView<float> out) {
  Blocking blocking{context.kernels, context.kernels.GemmFor(matrix.format)};
  blocking.depth = matrix.rows;
  blocking.precision = PrecisionFor(matrix.format);
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const PackedRows packed = PackRows(context, blocking, x.Some(token, tokens));
    const std::int64_t bytes = RoundUp(ColumnScratch::TotalBytes(packed), 64);
    auto* scratch = context.workspace.Get<std::uint8_t>(Scratch::kThreadBlocks,
                                                        bytes * context.team.NumThreads());
    const auto run = [&](std::int64_t chunk, std::int32_t thread) {
      const std::int64_t column = chunk * kChunkColumns;
      const std::int64_t count = std::min(kChunkColumns, matrix.columns - column);
      const ColumnScratch own = ColumnScratch::At(scratch + thread * bytes, packed);
      MultiplyPanels(matrix, packed, column, count, own);
      StoreColumns(own, tokens, count, bias != nullptr ? bias + column : nullptr,
                   out.Row(token) + column, out.stride);
    };
    context.team.ParallelFor(DivideUp(matrix.columns, kChunkColumns), std::ref(run));
  }
}

}  // namespace powerinfer
