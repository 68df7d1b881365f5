// Products of prompt rows with weights as rows of the kernel: out^T = matrix * x^T.
#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/blocking.h"

namespace powerinfer {
namespace {

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
  float* sums;           // f32[chunk rows, sums_stride]
  float* unpacked;       // f32[group rows, block_depth], or [tile_rows, block_depth] if packed
  std::uint8_t* packed;  // rows as the kernel reads them, if it packs
};

struct RowScratchLayout {
  std::int64_t group_rows;
  std::int64_t sums_stride;
  std::int64_t sums_size;
  std::int64_t unpacked_size;
  std::int64_t total_bytes;

  explicit RowScratchLayout(const PackedTokens& x, std::int64_t chunk_rows) {
    const GemmKernel& kernel = x.blocking.kernel;
    group_rows = kernel.group_rows > 0 ? kernel.group_rows : chunk_rows;
    // The extra columns keep rows of sums from falling into the same cache sets.
    sums_stride = x.num_panels * kernel.panel_width + 16;
    sums_size = chunk_rows * sums_stride;
    unpacked_size =
        (kernel.pack_rows != nullptr ? kernel.tile_rows : group_rows) * kernel.block_depth;
    const std::int64_t packed_bytes =
        kernel.pack_rows != nullptr ? group_rows * kernel.block_depth * x.blocking.ElementBytes()
                                    : 0;
    const std::int64_t floats = RoundUp(sums_size, 16) + RoundUp(unpacked_size, 16);
    total_bytes = floats * std::int64_t{sizeof(float)} + RoundUp(packed_bytes, 64);
  }

  RowScratch Of(std::uint8_t* base, std::int32_t thread) const {
    auto* sums = reinterpret_cast<float*>(base + thread * total_bytes);
    float* unpacked = sums + RoundUp(sums_size, 16);
    return {sums, unpacked, reinterpret_cast<std::uint8_t*>(unpacked + RoundUp(unpacked_size, 16))};
  }
};

/// A chunk of an item's rows, taken group by group through each depth block in turn.
class ChunkRows {
 public:
  ChunkRows(const LinearItem& item, const Blocking& blocking, std::int64_t first,
            std::int64_t count, std::int64_t group_rows, const RowScratch& scratch)
      : item_(item),
        blocking_(blocking),
        kernel_(blocking.kernel),
        first_(first),
        count_(count),
        group_rows_(group_rows),
        scratch_(scratch) {}

  /// Rows in the group that begins at `row`, whole tiles.
  std::int64_t GroupSize(std::int64_t row) const {
    return std::min(group_rows_, RoundUp(count_ - row, kernel_.tile_rows));
  }

  /// The group at `row` as the kernel reads it, padded with zeros.
  const void* Load(std::int64_t block, std::int64_t row) const {
    const std::int64_t depth = blocking_.BlockDepth(block);
    const std::int64_t packed_row = blocking_.PaddedDepth(depth) * blocking_.ElementBytes();
    for (std::int64_t i = 0; i < GroupSize(row); i += kernel_.tile_rows) {
      if (kernel_.pack_rows == nullptr) {
        LoadTile(block, row + i, scratch_.unpacked + i * kernel_.block_depth);
      } else {
        LoadTile(block, row + i, scratch_.unpacked);
        kernel_.pack_rows(scratch_.unpacked, kernel_.block_depth, kernel_.tile_rows, depth,
                          blocking_.precision, scratch_.packed + i * packed_row);
      }
    }
    return kernel_.pack_rows == nullptr ? static_cast<const void*>(scratch_.unpacked)
                                        : scratch_.packed;
  }

  /// Prefetches share `share` of `num_shares` of the group that is loaded after this one: data that
  /// arrives during the products of this one costs no waiting.
  void FetchNext(std::int64_t block, std::int64_t row, std::int64_t share,
                 std::int64_t num_shares) const {
    if (!FetchesAhead()) return;
    row += group_rows_;
    if (row >= count_) {
      row = 0;
      if (++block == blocking_.NumBlocks()) return;
    }
    const std::int64_t size = std::min(group_rows_, count_ - row);
    for (std::int64_t i = share * size / num_shares; i < (share + 1) * size / num_shares; ++i) {
      PrefetchPiece(item_.matrix, first_ + row + i, block * kernel_.block_depth,
                    blocking_.BlockDepth(block));
    }
  }

 private:
  /// Not if one group is the whole chunk: too few panels would spread its prefetches.
  bool FetchesAhead() const { return kernel_.group_rows > 0; }

  void LoadTile(std::int64_t block, std::int64_t row, float* tile) const {
    const std::int64_t depth = blocking_.BlockDepth(block);
    const std::int64_t column = block * kernel_.block_depth;
    for (std::int64_t r = 0; r < kernel_.tile_rows; ++r, tile += kernel_.block_depth) {
      if (row + r >= count_) {
        std::fill_n(tile, depth, 0.0F);
      } else if (FetchesAhead()) {
        DequantizeFetched(blocking_.kernels, item_.matrix, first_ + row + r, column, depth, tile);
      } else {
        DequantizePiece(blocking_.kernels, item_.matrix, {nullptr, item_.matrix.rows},
                        first_ + row + r, column, depth, tile);
      }
    }
  }

  const LinearItem& item_;
  const Blocking& blocking_;
  const GemmKernel& kernel_;
  std::int64_t first_;
  std::int64_t count_;
  std::int64_t group_rows_;
  RowScratch scratch_;
};

/// Rows [first, first + count) of an item for all tokens of `x`, which begin at `token`.
void MultiplyRows(const LinearItem& item, const PackedTokens& x, std::int64_t token,
                  std::int64_t first, std::int64_t count, const RowScratchLayout& layout,
                  const RowScratch& scratch) {
  const Blocking& blocking = x.blocking;
  const GemmKernel& kernel = blocking.kernel;
  const ChunkRows rows(item, blocking, first, count, layout.group_rows, scratch);
  for (std::int64_t block = 0; block < blocking.NumBlocks(); ++block) {
    for (std::int64_t row = 0; row < count; row += layout.group_rows) {
      const void* group = rows.Load(block, row);
      for (std::int64_t panel = 0; panel < x.num_panels; ++panel) {
        const std::int64_t column = panel * kernel.panel_width;
        rows.FetchNext(block, row, panel, x.num_panels);
        kernel.multiply(group, rows.GroupSize(row), x.Panel(block, panel),
                        blocking.BlockDepth(block), x.num_tokens - column, blocking.precision,
                        block > 0, scratch.sums + row * layout.sums_stride + column,
                        layout.sums_stride);
      }
    }
  }
  kernel.transpose(scratch.sums, layout.sums_stride, count, x.num_tokens,
                   item.bias != nullptr ? item.bias + first : nullptr, item.out.Row(token) + first,
                   item.out.stride);
}

/// Rows per chunk: no more than a block, and few enough that every thread gets several chunks.
std::int64_t NumChunkRows(const GemmKernel& kernel, std::span<const LinearItem> items,
                          std::int32_t num_threads) {
  std::int64_t rows = 0;
  for (const LinearItem& item : items) rows += item.matrix.rows;
  const std::int64_t even = DivideUp(rows, num_threads * kChunksPerThread);
  return std::min(kernel.block_rows, RoundUp(std::max<std::int64_t>(even, 1), kernel.tile_rows));
}

void MultiplyTokens(const OpContext& context, const PackedTokens& x, std::int64_t token,
                    std::span<const LinearItem> items) {
  const std::int64_t chunk_rows = NumChunkRows(x.blocking.kernel, items, context.team.NumThreads());
  const RowScratchLayout layout(x, chunk_rows);
  auto* scratch = context.workspace.Get<std::uint8_t>(
      Scratch::kThreadBlocks, layout.total_bytes * context.team.NumThreads());
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
  context.team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace

void BlockedLinear(const OpContext& context, RowsView<const float> x,
                   std::span<const LinearItem> items) {
  if (items.empty()) return;
  Blocking blocking{context.kernels, context.kernels.GemmFor(items.front().matrix.format)};
  blocking.depth = x.columns;
  blocking.precision = GemmPrecision::kSingle;
  for (const LinearItem& item : items) {
    blocking.precision = std::max(blocking.precision, PrecisionFor(item.matrix.format));
  }
  // Up to half as many tokens as lanes: then transposing weights costs less than empty lanes.
  if (blocking.kernel.multiply_few != nullptr && x.rows <= blocking.kernel.few_rows / 2) {
    FewTokensLinear(context, blocking, x, items);
    return;
  }
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const PackedTokens packed = PackTokens(context, blocking, x.Some(token, tokens));
    MultiplyTokens(context, packed, token, items);
  }
}

}  // namespace powerinfer
