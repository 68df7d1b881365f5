// Transposed down of single pairs. Work is cut by columns of the result, so that every sum belongs
// to one thread and no partial sums exist.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "base/rounding.h"
#include "ops/blocking.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

// Columns of one chunk: whole blocks of every format.
constexpr std::int64_t kChunkColumns = 256;
// Columns added at a time, and rows decoded at a time: the pieces of the rows take an eighth of a
// second-level cache of 1 MiB. Smaller slices would stay in the first-level cache, but then a token
// has too few pairs in one to pay for loading and storing its sums.
constexpr std::int64_t kStripColumns = 128;
constexpr std::int64_t kSliceRows = 256;
// Distance between rows; the extra columns spread the rows of a strip over all cache sets.
constexpr std::int64_t kRowStride = kChunkColumns + 64;

/// One thread's scratch for a chunk.
struct ColumnScratch {
  float* rows;  // f32[kSliceRows, kRowStride]
  float* sums;  // f32[tokens, kChunkColumns]

  static std::int64_t Size(std::int64_t num_tokens) {
    return kSliceRows * kRowStride + num_tokens * kChunkColumns;
  }
  static ColumnScratch At(float* base) { return {base, base + kSliceRows * kRowStride}; }
};

/// Bounds of each token's list in the slices of kSliceRows rows: the pairs of slice s are Of(i)[s]
/// to Of(i)[s + 1] - 1.
struct SliceBounds {
  std::int64_t num_slices = 0;
  std::int32_t* data = nullptr;

  std::int32_t* Of(std::int64_t i) const { return data + i * (num_slices + 1); }
};

SliceBounds FindSlices(const OpContext& context, const TokenPairs& pairs,
                       std::span<const std::int32_t> tokens, std::int64_t num_rows) {
  const std::int64_t num_slices = DivideUp(num_rows, kSliceRows);
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  const SliceBounds bounds{num_slices, context.workspace.Get<std::int32_t>(
                                           Scratch::kCounts, num_tokens * (num_slices + 1))};
  const auto find = [&](std::int64_t i, std::int32_t) {
    const std::int32_t token = tokens[static_cast<std::size_t>(i)];
    const std::int32_t* places = pairs.Ids(token);
    const std::int32_t* last = places + pairs.counts[token];
    const std::int32_t* from = places;
    for (std::int64_t slice = 0; slice <= num_slices; ++slice) {
      from = std::lower_bound(from, last, slice * kSliceRows);
      bounds.Of(i)[slice] = static_cast<std::int32_t>(from - places);
    }
  };
  context.team.ParallelFor(num_tokens, std::ref(find));
  return bounds;
}

/// One call's chunks.
struct ColumnSums {
  const KernelTable& kernels;
  const MatrixView& matrix;
  const float* bias;
  const TokenPairs& pairs;
  const NeededRows& needed;
  std::span<const std::int32_t> tokens;
  SliceBounds bounds;
  RowsView<float> out;

  void Run(std::int64_t column, std::int64_t count, const ColumnScratch& scratch) const;

 private:
  void Load(std::int64_t slice, std::int64_t column, std::int64_t count, float* rows) const;
  void AddStrip(std::int64_t slice, std::int64_t strip, std::int64_t columns,
                const ColumnScratch& scratch) const;
};

/// Decodes the rows of a slice.
void ColumnSums::Load(std::int64_t slice, std::int64_t column, std::int64_t count,
                      float* rows) const {
  const RowSelection selection{needed.ids.data(), needed.Count()};
  const std::int64_t first = slice * kSliceRows;
  const std::int64_t num_rows = std::min(kSliceRows, needed.Count() - first);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    float* row = rows + i * kRowStride;
    DequantizePiece(kernels, matrix, selection, first + i, column, count, row);
    std::fill(row + count, row + RoundUp(count, kVector), 0.0F);
  }
}

/// Adds the pairs of a slice to `columns` columns from `strip`.
void ColumnSums::AddStrip(std::int64_t slice, std::int64_t strip, std::int64_t columns,
                          const ColumnScratch& scratch) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    const std::int32_t begin = bounds.Of(place)[slice];
    const std::int32_t count = bounds.Of(place)[slice + 1] - begin;
    if (count == 0) continue;
    kernels.add_listed(scratch.rows + strip, kRowStride, pairs.Ids(tokens[i]) + begin,
                       slice * kSliceRows, pairs.Values(tokens[i]) + begin, count, columns,
                       scratch.sums + place * kChunkColumns + strip);
  }
}

/// Columns [column, column + count) of out.
void ColumnSums::Run(std::int64_t column, std::int64_t count, const ColumnScratch& scratch) const {
  const std::int64_t padded = RoundUp(count, kVector);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    float* sums = scratch.sums + static_cast<std::int64_t>(i) * kChunkColumns;
    std::fill_n(sums, padded, 0.0F);
    if (bias != nullptr) std::copy_n(bias + column, count, sums);
  }
  for (std::int64_t slice = 0; slice < bounds.num_slices; ++slice) {
    Load(slice, column, count, scratch.rows);
    for (std::int64_t strip = 0; strip < padded; strip += kStripColumns) {
      AddStrip(slice, strip, std::min(kStripColumns, padded - strip), scratch);
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::copy_n(scratch.sums + static_cast<std::int64_t>(i) * kChunkColumns, count,
                out.Row(tokens[i]) + column);
  }
}

}  // namespace

void AddPairs(const OpContext& context, const MatrixView& matrix, const float* bias,
              const TokenPairs& pairs, const NeededRows& needed,
              std::span<const std::int32_t> tokens, RowsView<float> out) {
  const SliceBounds bounds = FindSlices(context, pairs, tokens, needed.Count());
  const ColumnSums sums{context.kernels, matrix, bias, pairs, needed, tokens, bounds, out};
  const std::int64_t size = ColumnScratch::Size(static_cast<std::int64_t>(tokens.size()));
  auto* scratch =
      context.workspace.Get<float>(Scratch::kThreadBlocks, size * context.team.NumThreads());
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const std::int64_t column = chunk * kChunkColumns;
    sums.Run(column, std::min(kChunkColumns, matrix.columns - column),
             ColumnScratch::At(scratch + thread * size));
  };
  context.team.ParallelFor(DivideUp(matrix.columns, kChunkColumns), std::ref(run));
}

}  // namespace powerinfer
