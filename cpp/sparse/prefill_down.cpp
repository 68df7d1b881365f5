// Transposed down of the pairs of neurons that fire rarely. Work is cut by columns of the result,
// so that every sum belongs to one thread and no partial sums exist.
#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/rounding.h"
#include "ops/blocking.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

// Columns of one chunk: whole blocks of every format.
constexpr std::int64_t kChunkColumns = 256;
// Rows decoded at a time; with kChunkColumns they take half of a common second-level cache.
constexpr std::int64_t kSliceRows = 512;
// Whole vectors of every instruction set.
constexpr std::int64_t kVector = 16;

/// One thread's scratch for a chunk.
struct ColumnScratch {
  float* rows;  // f32[kSliceRows, kChunkColumns]
  float* sums;  // f32[num_tokens, kChunkColumns]

  static std::int64_t Size(std::int64_t num_tokens) {
    return (kSliceRows + num_tokens) * kChunkColumns;
  }
  static ColumnScratch At(float* base) { return {base, base + kSliceRows * kChunkColumns}; }
};

/// Where each token's list enters the slices of kSliceRows rows: the pairs of slice s are
/// Of(token)[s] to Of(token)[s + 1] - 1.
struct SliceBounds {
  std::int64_t num_slices = 0;
  std::int32_t* data = nullptr;

  std::int32_t* Of(std::int64_t token) const { return data + token * (num_slices + 1); }
};

SliceBounds FindSlices(const OpContext& context, const ValuedPairs& pairs, std::int64_t num_tokens,
                       std::int64_t num_rows) {
  const std::int64_t num_slices = DivideUp(num_rows, kSliceRows);
  const SliceBounds bounds{num_slices, context.workspace.Get<std::int32_t>(
                                           Scratch::kCounts, num_tokens * (num_slices + 1))};
  const auto find = [&](std::int64_t token, std::int32_t) {
    const std::int32_t* places = pairs.places + token * pairs.stride;
    const std::int32_t* last = places + pairs.counts[token];
    const std::int32_t* from = places;
    for (std::int64_t slice = 0; slice <= num_slices; ++slice) {
      from = std::lower_bound(from, last, slice * kSliceRows);
      bounds.Of(token)[slice] = static_cast<std::int32_t>(from - places);
    }
  };
  context.team.ParallelFor(num_tokens, std::ref(find));
  return bounds;
}

/// Adds the pairs of one slice, whose rows are in the scratch.
void AddSlice(const KernelTable& kernels, const ValuedPairs& pairs, const SliceBounds& bounds,
              std::int64_t num_tokens, std::int64_t slice, std::int64_t columns,
              const ColumnScratch& scratch) {
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int64_t begin = bounds.Of(token)[slice];
    const std::int64_t count = bounds.Of(token)[slice + 1] - begin;
    if (count == 0) continue;
    const std::int64_t at = token * pairs.stride + begin;
    kernels.add_listed(scratch.rows, kChunkColumns, pairs.places + at, slice * kSliceRows,
                       pairs.values + at, count, columns, scratch.sums + token * kChunkColumns);
  }
}

/// Columns [column, column + count) of out.
void AddColumns(const KernelTable& kernels, const MatrixView& matrix, const ValuedPairs& pairs,
                const SliceBounds& bounds, const RowSelection& rows, std::int64_t column,
                std::int64_t count, RowsView<float> out, const ColumnScratch& scratch) {
  const std::int64_t padded = RoundUp(count, kVector);
  for (std::int64_t token = 0; token < out.rows; ++token) {
    float* sums = scratch.sums + token * kChunkColumns;
    std::copy_n(out.Row(token) + column, count, sums);
    std::fill(sums + count, sums + padded, 0.0F);
  }
  for (std::int64_t slice = 0; slice < bounds.num_slices; ++slice) {
    const std::int64_t first = slice * kSliceRows;
    const std::int64_t num_rows = std::min(kSliceRows, rows.count - first);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      float* row = scratch.rows + i * kChunkColumns;
      DequantizePiece(kernels, matrix, rows, first + i, column, count, row);
      std::fill(row + count, row + padded, 0.0F);
    }
    AddSlice(kernels, pairs, bounds, out.rows, slice, padded, scratch);
  }
  for (std::int64_t token = 0; token < out.rows; ++token) {
    std::copy_n(scratch.sums + token * kChunkColumns, count, out.Row(token) + column);
  }
}

}  // namespace

void AddPairs(const OpContext& context, const MatrixView& matrix, const ValuedPairs& pairs,
              const NeuronSplit& split, RowsView<float> out) {
  const RowSelection rows{split.rarely.data(), split.NumRarely()};
  if (rows.count == 0) return;
  const SliceBounds bounds = FindSlices(context, pairs, out.rows, rows.count);
  const std::int64_t size = ColumnScratch::Size(out.rows);
  auto* scratch =
      context.workspace.Get<float>(Scratch::kThreadBlocks, size * context.team.NumThreads());
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const std::int64_t column = chunk * kChunkColumns;
    AddColumns(context.kernels, matrix, pairs, bounds, rows, column,
               std::min(kChunkColumns, matrix.columns - column), out,
               ColumnScratch::At(scratch + thread * size));
  };
  context.team.ParallelFor(DivideUp(matrix.columns, kChunkColumns), std::ref(run));
}

}  // namespace powerinfer
