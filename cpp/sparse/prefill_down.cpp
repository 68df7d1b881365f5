// Transposed down of the pairs of neurons that fire rarely. Work is cut by columns of the result,
// so that every sum belongs to one thread and no partial sums exist.
#include <algorithm>
#include <cstddef>
#include <functional>

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
  float* rows;           // f32[kSliceRows, kChunkColumns]
  float* sums;           // f32[num_tokens, kChunkColumns]
  std::int64_t* cursor;  // i64[num_tokens]: the first pair that is not added yet

  static std::int64_t Bytes(std::int64_t num_tokens) {
    return (kSliceRows + num_tokens) * kChunkColumns * std::int64_t{sizeof(float)} +
           RoundUp(num_tokens * std::int64_t{sizeof(std::int64_t)}, 64);
  }
  static ColumnScratch At(std::uint8_t* base, std::int64_t num_tokens) {
    auto* rows = reinterpret_cast<float*>(base);
    float* sums = rows + kSliceRows * kChunkColumns;
    return {rows, sums, reinterpret_cast<std::int64_t*>(sums + num_tokens * kChunkColumns)};
  }
};

/// Adds the pairs of neurons [first, first + count) of the split, whose rows are in the scratch.
void AddSlice(const ValuedPairs& pairs, std::int64_t num_tokens, std::int64_t first,
              std::int64_t count, std::int64_t columns, const ColumnScratch& scratch) {
  const KernelTable& kernels = Kernels();
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int32_t* places = pairs.places + token * pairs.stride;
    const std::int64_t begin = scratch.cursor[token];
    std::int64_t end = begin;
    while (end < pairs.counts[token] && places[end] < first + count) ++end;
    scratch.cursor[token] = end;
    if (begin == end) continue;
    kernels.add_listed(scratch.rows, kChunkColumns, places + begin, first,
                       pairs.values + token * pairs.stride + begin, end - begin, columns,
                       scratch.sums + token * kChunkColumns);
  }
}

/// Columns [column, column + count) of out.
void AddColumns(const MatrixView& matrix, const ValuedPairs& pairs, const RowSelection& rows,
                std::int64_t column, std::int64_t count, RowsView<float> out,
                const ColumnScratch& scratch) {
  const std::int64_t padded = RoundUp(count, kVector);
  std::fill_n(scratch.cursor, out.rows, 0);
  for (std::int64_t token = 0; token < out.rows; ++token) {
    float* sums = scratch.sums + token * kChunkColumns;
    std::copy_n(out.Row(token) + column, count, sums);
    std::fill(sums + count, sums + padded, 0.0F);
  }
  for (std::int64_t first = 0; first < rows.count; first += kSliceRows) {
    const std::int64_t num_rows = std::min(kSliceRows, rows.count - first);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      float* row = scratch.rows + i * kChunkColumns;
      DequantizePiece(matrix, rows, first + i, column, count, row);
      std::fill(row + count, row + padded, 0.0F);
    }
    AddSlice(pairs, out.rows, first, num_rows, padded, scratch);
  }
  for (std::int64_t token = 0; token < out.rows; ++token) {
    std::copy_n(scratch.sums + token * kChunkColumns, count, out.Row(token) + column);
  }
}

}  // namespace

void AddPairs(ThreadTeam& team, Workspace& workspace, const MatrixView& matrix,
              const ValuedPairs& pairs, const NeuronSplit& split, RowsView<float> out) {
  const RowSelection rows{split.rarely.data(), split.NumRarely()};
  const std::int64_t bytes = ColumnScratch::Bytes(out.rows);
  auto* scratch = workspace.Get<std::uint8_t>(Scratch::kThreadBlocks, bytes * team.NumThreads());
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const std::int64_t column = chunk * kChunkColumns;
    AddColumns(matrix, pairs, rows, column, std::min(kChunkColumns, matrix.columns - column), out,
               ColumnScratch::At(scratch + thread * bytes, out.rows));
  };
  team.ParallelFor(DivideUp(matrix.columns, kChunkColumns), std::ref(run));
}

}  // namespace powerinfer
