// Products of a few prompt tokens: weights in the lanes of vectors, group by group.
#include <algorithm>
#include <functional>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Rows handed out at a time, if every thread gets several chunks: long enough for the processor's
// prefetchers.
constexpr std::int64_t kMaxChunkRows = 64;
constexpr std::int64_t kMaxFewRows = 16;

/// Prefetches depth block `block` of the rows from `row` on, or nothing past the end.
void FetchGroup(const LinearItem& item, const Blocking& blocking, std::int64_t row,
                std::int64_t block) {
  const std::int64_t end = std::min(row + blocking.kernel.few_rows, item.matrix.rows);
  for (std::int64_t i = row; i < end; ++i) {
    PrefetchPiece(item.matrix, i, block * blocking.kernel.block_depth, blocking.BlockDepth(block));
  }
}

/// few_rows rows from `row` on for all tokens, through all depth blocks.
void MultiplyGroup(const LinearItem& item, const Blocking& blocking, RowsView<const float> x,
                   std::int64_t row, float* unpacked) {
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t count = std::min(kernel.few_rows, item.matrix.rows - row);
  float sums[kMaxFewTokens * kMaxFewRows];
  for (std::int64_t block = 0; block < blocking.NumBlocks(); ++block) {
    const std::int64_t column = block * kernel.block_depth;
    const std::int64_t depth = blocking.BlockDepth(block);
    if (block + 1 < blocking.NumBlocks()) {
      FetchGroup(item, blocking, row, block + 1);
    } else {
      FetchGroup(item, blocking, row + kernel.few_rows, 0);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      DequantizeFetched(blocking.kernels, item.matrix, row + i, column, depth,
                        unpacked + i * kernel.block_depth);
    }
    kernel.multiply_few(unpacked, x.data + column, x.stride, depth, x.rows, block > 0, sums,
                        kMaxFewRows);
  }
  for (std::int64_t t = 0; t < x.rows; ++t) {
    float* out = item.out.Row(t) + row;
    const float* from = sums + t * kMaxFewRows;
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = item.bias != nullptr ? from[i] + item.bias[row + i] : from[i];
    }
  }
}

std::int64_t FewChunkRows(const GemmKernel& kernel, std::span<const LinearItem> items,
                          std::int32_t num_threads) {
  std::int64_t rows = 0;
  for (const LinearItem& item : items) rows += item.matrix.rows;
  const std::int64_t even = DivideUp(rows, num_threads * kChunksPerThread);
  return RoundUp(std::clamp<std::int64_t>(even, 1, kMaxChunkRows), kernel.few_rows);
}

}  // namespace

void FewTokensLinear(const OpContext& context, const Blocking& blocking, RowsView<const float> x,
                     std::span<const LinearItem> items) {
  const GemmKernel& kernel = blocking.kernel;
  const std::int64_t size = kMaxFewRows * kernel.block_depth;
  auto* scratch =
      context.workspace.Get<float>(Scratch::kThreadBlocks, size * context.team.NumThreads());
  // The rows past the end of a matrix are multiplied too, and not stored.
  std::fill_n(scratch, size * context.team.NumThreads(), 0.0F);
  const std::int64_t chunk_rows = FewChunkRows(kernel, items, context.team.NumThreads());
  std::int64_t num_chunks = 0;
  for (const LinearItem& item : items) num_chunks += DivideUp(item.matrix.rows, chunk_rows);
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const LinearItem* item = items.data();
    for (; chunk >= DivideUp(item->matrix.rows, chunk_rows); ++item) {
      chunk -= DivideUp(item->matrix.rows, chunk_rows);
    }
    const std::int64_t first = chunk * chunk_rows;
    const std::int64_t end = std::min(first + chunk_rows, item->matrix.rows);
    for (std::int64_t row = first; row < end; row += kernel.few_rows) {
      MultiplyGroup(*item, blocking, x, row, scratch + thread * size);
    }
  };
  context.team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace powerinfer
