#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Rows between the one being dequantized and the one fetched: longer than memory takes to answer.
constexpr std::int64_t kPrefetchRows = 24;

}  // namespace

void PrefetchPiece(const MatrixView& matrix, std::int64_t row, std::int64_t column,
                   std::int64_t count) {
  const std::uint8_t* piece = matrix.Row(row) + RowBytes(matrix.format, column);
  const std::int64_t bytes = RowBytes(matrix.format, count);
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(piece + i, 0, 2);
  __builtin_prefetch(piece + bytes - 1, 0, 2);
}

void DequantizeFetched(const KernelTable& kernels, const MatrixView& matrix, std::int64_t row,
                       std::int64_t column, std::int64_t count, float* out) {
  const auto format = static_cast<std::size_t>(matrix.format);
  kernels.dequantize_row[format](matrix.Row(row) + RowBytes(matrix.format, column), count, out);
}

void DequantizePiece(const KernelTable& kernels, const MatrixView& matrix, const RowSelection& rows,
                     std::int64_t i, std::int64_t column, std::int64_t count, float* out) {
  if (i + kPrefetchRows < rows.count) {
    PrefetchPiece(matrix, rows[i + kPrefetchRows], column, count);
  }
  DequantizeFetched(kernels, matrix, rows[i], column, count, out);
}

}  // namespace powerinfer
