#include "ops/blocked_product.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "kernels/gemm.h"

namespace powerinfer {
namespace {

// Chunks per thread that dynamic hand-out needs for balance.
constexpr std::int64_t kChunksPerThread = 4;
// Columns of a transposed matrix in one chunk: several cache lines of every row, whole blocks of
// every format.
constexpr std::int64_t kChunkColumns = 256;
// Rows between the one being dequantized and the one fetched: longer than memory takes to answer.
constexpr std::int64_t kPrefetchRows = 24;
// Rows of a transposed matrix dequantized at a time, 32 KiB of f32.
constexpr std::int64_t kSliceRows = 32;

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t RoundUp(std::int64_t a, std::int64_t b) { return DivideUp(a, b) * b; }

/// Block formats lose more in the 8-bit activations of the dot kernels than in bfloat16.
GemmPrecision PrecisionFor(Format format) {
  return InfoOf(format).block_size > 1 ? GemmPrecision::kSingle : GemmPrecision::kSplit;
}

/// The kernel and the sizes derived from it.
struct Blocking {
  GemmKernel kernel = Kernels().gemm;
  GemmPrecision precision = GemmPrecision::kSplit;
  std::int64_t depth = 0;

  std::int64_t ElementBytes() const {
    return precision == GemmPrecision::kSplit ? kernel.split_bytes : kernel.single_bytes;
  }
  std::int64_t NumBlocks() const { return DivideUp(depth, kernel.block_depth); }
  std::int64_t BlockDepth(std::int64_t block) const {
    return std::min(kernel.block_depth, depth - block * kernel.block_depth);
  }
  std::int64_t PaddedDepth(std::int64_t depth_of_block) const {
    return RoundUp(depth_of_block, kernel.depth_multiple);
  }
  /// Bytes before depth block `block` in an operand of `width` rows or columns.
  std::int64_t BlockOffset(std::int64_t block, std::int64_t width) const {
    return block * kernel.block_depth * width * ElementBytes();
  }
  std::int64_t OperandBytes(std::int64_t width) const {
    return PaddedDepth(depth) * width * ElementBytes();
  }
};

/// Blocks are short pieces of many rows, which no hardware prefetcher follows.
void PrefetchPiece(const MatrixView& matrix, std::int64_t row, std::int64_t column,
                   std::int64_t count) {
  const std::uint8_t* piece = matrix.Row(row) + RowBytes(matrix.format, column);
  const std::int64_t bytes = RowBytes(matrix.format, count);
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(piece + i, 0, 2);
  __builtin_prefetch(piece + bytes - 1, 0, 2);
}

void Dequantize(const MatrixView& matrix, std::int64_t row, std::int64_t column,
                std::int64_t count, float* out) {
  if (row + kPrefetchRows < matrix.rows) {
    PrefetchPiece(matrix, row + kPrefetchRows, column, count);
  }
  const std::int64_t offset = RowBytes(matrix.format, column);
  Kernels().dequantize_row[static_cast<std::size_t>(matrix.format)](matrix.Row(row) + offset,
                                                                     count, out);
}

// ---------------------------------------------------------------------------------------------
// Weights as rows: out^T = matrix * x^T.

/// x of one block of tokens, packed: [depth block][panel][depth, panel_width].
struct PackedTokens {
  Blocking blocking;
  std::int64_t num_tokens = 0;
  std::int64_t num_panels = 0;
  std::uint8_t* data = nullptr;

  std::uint8_t* Panel(std::int64_t block, std::int64_t panel) const {
    const std::int64_t width = blocking.kernel.panel_width;
    const std::int64_t depth = blocking.PaddedDepth(blocking.BlockDepth(block));
    return data + blocking.BlockOffset(block, num_panels * width) +
           panel * depth * width * blocking.ElementBytes();
  }
};

PackedTokens PackTokens(ThreadTeam& team, Workspace& workspace, const Blocking& blocking,
                        RowsView<const float> x) {
  const GemmKernel& kernel = blocking.kernel;
  PackedTokens packed{blocking, x.rows, DivideUp(x.rows, kernel.panel_width), nullptr};
  packed.data = workspace.Get<std::uint8_t>(
      Scratch::kPackedInput, blocking.OperandBytes(packed.num_panels * kernel.panel_width));
  const auto pack = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t panel = chunk % packed.num_panels;
    const std::int64_t block = chunk / packed.num_panels;
    const std::int64_t token = panel * kernel.panel_width;
    kernel.pack_panel_transposed(x.Row(token) + block * kernel.block_depth, x.stride,
                                 blocking.BlockDepth(block),
                                 std::min(kernel.panel_width, x.rows - token), blocking.precision,
                                 packed.Panel(block, panel));
  };
  team.ParallelFor(blocking.NumBlocks() * packed.num_panels, std::ref(pack));
  return packed;
}

/// One thread's scratch for a chunk of weight rows.
struct RowScratch {
  float* sums;          // f32[block_rows, sums_stride]
  float* unpacked;      // f32[tile_rows, block_depth], or [block_rows, block_depth] if not packed
  std::uint8_t* packed; // rows as the kernel reads them
};

struct RowScratchLayout {
  std::int64_t sums_stride;
  std::int64_t sums_size;
  std::int64_t unpacked_size;
  std::int64_t total_bytes;

  explicit RowScratchLayout(const PackedTokens& x, std::int64_t block_rows) {
    const GemmKernel& kernel = x.blocking.kernel;
    // The extra columns keep rows of sums from falling into the same cache sets.
    sums_stride = x.num_panels * kernel.panel_width + 16;
    sums_size = block_rows * sums_stride;
    const bool is_packed = kernel.pack_rows != nullptr;
    unpacked_size = (is_packed ? kernel.tile_rows : block_rows) * kernel.block_depth;
    const std::int64_t packed_bytes =
        is_packed ? block_rows * kernel.block_depth * x.blocking.ElementBytes() : 0;
    const std::int64_t floats = RoundUp(sums_size, 16) + RoundUp(unpacked_size, 16);
    total_bytes = floats * std::int64_t{sizeof(float)} + RoundUp(packed_bytes, 64);
  }

  RowScratch Of(std::uint8_t* base, std::int32_t thread) const {
    auto* sums = reinterpret_cast<float*>(base + thread * total_bytes);
    float* unpacked = sums + RoundUp(sums_size, 16);
    return {sums, unpacked,
            reinterpret_cast<std::uint8_t*>(unpacked + RoundUp(unpacked_size, 16))};
  }
};

/// Rows [first, first + count) of one depth block as the kernel reads them, padded with zeros to
/// whole tiles.
const void* LoadRows(const MatrixView& matrix, const Blocking& blocking, std::int64_t first,
                     std::int64_t count, std::int64_t block, const RowScratch& scratch) {
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t stride = kernel.block_depth;
  const std::int64_t depth = blocking.BlockDepth(block);
  const std::int64_t padded = RoundUp(count, kernel.tile_rows);
  const std::int64_t packed_row = blocking.PaddedDepth(depth) * blocking.ElementBytes();
  for (std::int64_t i = 0; i < padded; i += kernel.tile_rows) {
    float* tile = scratch.unpacked + (kernel.pack_rows == nullptr ? i * stride : 0);
    for (std::int64_t r = 0; r < kernel.tile_rows; ++r) {
      float* row = tile + r * stride;
      if (i + r < count) {
        Dequantize(matrix, first + i + r, block * kernel.block_depth, depth, row);
      } else {
        std::fill_n(row, depth, 0.0F);
      }
    }
    if (kernel.pack_rows != nullptr) {
      kernel.pack_rows(tile, stride, kernel.tile_rows, depth, blocking.precision,
                       scratch.packed + i * packed_row);
    }
  }
  return kernel.pack_rows != nullptr ? static_cast<const void*>(scratch.packed) : scratch.unpacked;
}

/// Rows [first, first + count) of an item for all tokens of `x`, which begin at `token`.
void MultiplyRows(const LinearItem& item, const PackedTokens& x, std::int64_t token,
                  std::int64_t first, std::int64_t count, const RowScratchLayout& layout,
                  const RowScratch& scratch) {
  const Blocking& blocking = x.blocking;
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t padded = RoundUp(count, kernel.tile_rows);
  for (std::int64_t block = 0; block < blocking.NumBlocks(); ++block) {
    const void* rows = LoadRows(item.matrix, blocking, first, count, block, scratch);
    for (std::int64_t panel = 0; panel < x.num_panels; ++panel) {
      const std::int64_t column = panel * kernel.panel_width;
      kernel.multiply(rows, padded, x.Panel(block, panel), blocking.BlockDepth(block),
                      x.num_tokens - column, blocking.precision, block > 0,
                      scratch.sums + column, layout.sums_stride);
    }
  }
  kernel.transpose(scratch.sums, layout.sums_stride, count, x.num_tokens,
                   item.bias != nullptr ? item.bias + first : nullptr,
                   item.out.Row(token) + first, item.out.stride);
}

/// Rows per chunk: no more than a block, and few enough that every thread gets several chunks.
std::int64_t ChunkRows(const GemmKernel& kernel, std::span<const LinearItem> items,
                       std::int32_t num_threads) {
  std::int64_t rows = 0;
  for (const LinearItem& item : items) rows += item.matrix.rows;
  const std::int64_t even = DivideUp(rows, num_threads * kChunksPerThread);
  return std::min(kernel.block_rows, RoundUp(std::max<std::int64_t>(even, 1), kernel.tile_rows));
}

void MultiplyTokens(ThreadTeam& team, Workspace& workspace, const PackedTokens& x,
                    std::int64_t token, std::span<const LinearItem> items) {
  const std::int64_t chunk_rows = ChunkRows(x.blocking.kernel, items, team.NumThreads());
  const RowScratchLayout layout(x, chunk_rows);
  auto* scratch = workspace.Get<std::uint8_t>(Scratch::kThreadBlocks,
                                              layout.total_bytes * team.NumThreads());
  std::int64_t num_chunks = 0;
  for (const LinearItem& item : items) num_chunks += DivideUp(item.matrix.rows, chunk_rows);
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const LinearItem* item = items.data();
    for (; chunk >= DivideUp(item->matrix.rows, chunk_rows); ++item) {
      chunk -= DivideUp(item->matrix.rows, chunk_rows);
    }
    const std::int64_t first = chunk * chunk_rows;
    MultiplyRows(*item, x, token, first, std::min(chunk_rows, item->matrix.rows - first), layout,
                 layout.Of(scratch, thread));
  };
  team.ParallelFor(num_chunks, std::ref(run));
}

// ---------------------------------------------------------------------------------------------
// Weights as panels: out = x * matrix.

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
    kernel.pack_rows(rows, stride, kernel.tile_rows, depth, blocking.precision,
                     packed.Block(block) +
                         token * blocking.PaddedDepth(depth) * blocking.ElementBytes());
  }
}

PackedRows PackRows(ThreadTeam& team, Workspace& workspace, const Blocking& blocking,
                    RowsView<const float> x) {
  const GemmKernel& kernel = blocking.kernel;
  PackedRows packed{blocking, x.rows, RoundUp(x.rows, kernel.tile_rows), nullptr};
  packed.data = workspace.Get<std::uint8_t>(
      Scratch::kPackedInput, blocking.BlockOffset(blocking.NumBlocks(), packed.padded_tokens));
  const std::int64_t tile_size = kernel.tile_rows * kernel.block_depth;
  auto* padded = workspace.Get<float>(Scratch::kThreadBlocks, tile_size * team.NumThreads());
  const std::int64_t num_tiles = packed.padded_tokens / kernel.tile_rows;
  const auto pack = [&](std::int64_t chunk, std::int32_t thread) {
    PackRowTile(packed, x, chunk / num_tiles, chunk % num_tiles * kernel.tile_rows,
                padded + thread * tile_size);
  };
  team.ParallelFor(num_tiles * blocking.NumBlocks(), std::ref(pack));
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
    return RoundUp(floats, 16) * std::int64_t{sizeof(float)} +
           num_panels * PanelBytes(x.blocking);
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
      Dequantize(matrix, first_row + k + r, column, count, scratch.slice + r * kChunkColumns);
    }
    const std::int64_t offset = k * kernel.panel_width * blocking.ElementBytes();
    for (std::int64_t j = 0; j < count; j += kernel.panel_width) {
      kernel.pack_panel(scratch.slice + j, kChunkColumns, rows,
                        std::min(kernel.panel_width, count - j), blocking.precision,
                        scratch.panels + j / kernel.panel_width * scratch.PanelBytes(blocking) +
                            offset);
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

void BlockedLinear(ThreadTeam& team, Workspace& workspace, RowsView<const float> x,
                   std::span<const LinearItem> items) {
  Blocking blocking;
  blocking.depth = x.columns;
  blocking.precision = GemmPrecision::kSingle;
  for (const LinearItem& item : items) {
    blocking.precision = std::max(blocking.precision, PrecisionFor(item.matrix.format));
  }
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const PackedTokens packed =
        PackTokens(team, workspace, blocking, {x.Row(token), tokens, x.columns, x.stride});
    MultiplyTokens(team, workspace, packed, token, items);
  }
}

void BlockedTransposedLinear(ThreadTeam& team, Workspace& workspace, RowsView<const float> x,
                             const MatrixView& matrix, const float* bias, RowsView<float> out) {
  Blocking blocking;
  blocking.depth = matrix.rows;
  blocking.precision = PrecisionFor(matrix.format);
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const PackedRows packed =
        PackRows(team, workspace, blocking, {x.Row(token), tokens, x.columns, x.stride});
    const std::int64_t bytes = RoundUp(ColumnScratch::TotalBytes(packed), 64);
    auto* scratch =
        workspace.Get<std::uint8_t>(Scratch::kThreadBlocks, bytes * team.NumThreads());
    const auto run = [&](std::int64_t chunk, std::int32_t thread) {
      const std::int64_t column = chunk * kChunkColumns;
      const std::int64_t count = std::min(kChunkColumns, matrix.columns - column);
      const ColumnScratch own = ColumnScratch::At(scratch + thread * bytes, packed);
      MultiplyPanels(matrix, packed, column, count, own);
      StoreColumns(own, tokens, count, bias != nullptr ? bias + column : nullptr,
                   out.Row(token) + column, out.stride);
    };
    team.ParallelFor(DivideUp(matrix.columns, kChunkColumns), std::ref(run));
  }
}

}  // namespace powerinfer
