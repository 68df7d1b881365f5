// Products for many tokens with weights as rows of the kernel: out^T = matrix * x^T.
#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Chunks per thread that dynamic hand-out needs for balance.
constexpr std::int64_t kChunksPerThread = 4;

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

PackedTokens PackTokens(const OpContext& context, const Blocking& blocking,
                        RowsView<const float> x) {
  const GemmKernel& kernel = blocking.kernel;
  PackedTokens packed{blocking, x.rows, DivideUp(x.rows, kernel.panel_width), nullptr};
  packed.data = context.workspace.Get<std::uint8_t>(
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
  context.team.ParallelFor(blocking.NumBlocks() * packed.num_panels, std::ref(pack));
  return packed;
}

/// One thread's scratch for a chunk of weight rows.
struct RowScratch {
  float* sums;           // f32[block_rows, sums_stride]
  float* unpacked;       // f32[tile_rows, block_depth], or [block_rows, block_depth] if not packed
  std::uint8_t* packed;  // rows as the kernel reads them
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
    return {sums, unpacked, reinterpret_cast<std::uint8_t*>(unpacked + RoundUp(unpacked_size, 16))};
  }
};

RowSelection RowsOf(const LinearItem& item) {
  return {item.row_ids, item.row_ids != nullptr ? item.out.columns : item.matrix.rows};
}

/// Rows [first, first + count) of one depth block as the kernel reads them, padded with zeros to
/// whole tiles.
const void* LoadRows(const LinearItem& item, const Blocking& blocking, std::int64_t first,
                     std::int64_t count, std::int64_t block, const RowScratch& scratch) {
  const RowSelection rows = RowsOf(item);
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
        DequantizePiece(blocking.kernels, item.matrix, rows, first + i + r,
                        block * kernel.block_depth, depth, row);
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
    const void* rows = LoadRows(item, blocking, first, count, block, scratch);
    for (std::int64_t panel = 0; panel < x.num_panels; ++panel) {
      const std::int64_t column = panel * kernel.panel_width;
      kernel.multiply(rows, padded, x.Panel(block, panel), blocking.BlockDepth(block),
                      x.num_tokens - column, blocking.precision, block > 0, scratch.sums + column,
                      layout.sums_stride);
    }
  }
  kernel.transpose(scratch.sums, layout.sums_stride, count, x.num_tokens,
                   item.bias != nullptr ? item.bias + first : nullptr, item.out.Row(token) + first,
                   item.out.stride);
}

/// Rows per chunk: no more than a block, and few enough that every thread gets several chunks.
std::int64_t ChunkRows(const GemmKernel& kernel, std::span<const LinearItem> items,
                       std::int32_t num_threads) {
  std::int64_t rows = 0;
  for (const LinearItem& item : items) rows += RowsOf(item).count;
  const std::int64_t even = DivideUp(rows, num_threads * kChunksPerThread);
  return std::min(kernel.block_rows, RoundUp(std::max<std::int64_t>(even, 1), kernel.tile_rows));
}

void MultiplyTokens(const OpContext& context, const PackedTokens& x, std::int64_t token,
                    std::span<const LinearItem> items) {
  const std::int64_t chunk_rows = ChunkRows(x.blocking.kernel, items, context.team.NumThreads());
  const RowScratchLayout layout(x, chunk_rows);
  auto* scratch = context.workspace.Get<std::uint8_t>(
      Scratch::kThreadBlocks, layout.total_bytes * context.team.NumThreads());
  std::int64_t num_chunks = 0;
  for (const LinearItem& item : items) num_chunks += DivideUp(RowsOf(item).count, chunk_rows);
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const LinearItem* item = items.data();
    for (; chunk >= DivideUp(RowsOf(*item).count, chunk_rows); ++item) {
      chunk -= DivideUp(RowsOf(*item).count, chunk_rows);
    }
    const std::int64_t first = chunk * chunk_rows;
    MultiplyRows(*item, x, token, first, std::min(chunk_rows, RowsOf(*item).count - first), layout,
                 layout.Of(scratch, thread));
  };
  context.team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace

void BlockedLinear(const OpContext& context, RowsView<const float> x,
                   std::span<const LinearItem> items) {
  Blocking blocking{context.kernels};
  blocking.depth = x.columns;
  blocking.precision = GemmPrecision::kSingle;
  for (const LinearItem& item : items) {
    blocking.precision = std::max(blocking.precision, PrecisionFor(item.matrix.format));
  }
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const PackedTokens packed =
        PackTokens(context, blocking, {x.Row(token), tokens, x.columns, x.stride});
    MultiplyTokens(context, packed, token, items);
  }
}

}  // namespace powerinfer
