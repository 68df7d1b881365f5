#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Rows between the one being dequantized and the one fetched: longer than memory takes to answer.
constexpr std::int64_t kPrefetchRows = 24;

void PrefetchPiece(const std::uint8_t* piece, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(piece + i, 0, 2);
  __builtin_prefetch(piece + bytes - 1, 0, 2);
}

}  // namespace

void DequantizePiece(const KernelTable& kernels, const MatrixView& matrix, const RowSelection& rows,
                     std::int64_t i, std::int64_t column, std::int64_t count, float* out) {
  const std::int64_t offset = RowBytes(matrix.format, column);
  if (i + kPrefetchRows < rows.count) {
    PrefetchPiece(matrix.Row(rows[i + kPrefetchRows]) + offset, RowBytes(matrix.format, count));
  }
  const auto format = static_cast<std::size_t>(matrix.format);
  kernels.dequantize_row[format](matrix.Row(rows[i]) + offset, count, out);
}

}  // namespace powerinfer
