#include "hybrid/encoded_rows.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/row_chunks.h"
#include "quant/superblock.h"

namespace powerinfer {

Format EncodedFormat(Format format) {
  return format == Format::kQ4_0Superblock ? Format::kQ4_0 : format;
}

void CopyEncodedRows(ThreadTeam& team, const MatrixView& matrix, std::span<const std::int32_t> ids,
                     std::uint8_t* out) {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < matrix.rows) continue;
    throw std::out_of_range("row " + std::to_string(id) + " is not in [0, " +
                            std::to_string(matrix.rows) + ")");
  }
  const std::int64_t row_bytes = RowBytes(EncodedFormat(matrix.format), matrix.columns);
  const auto count = static_cast<std::int64_t>(ids.size());
  ForEachRow(team, count, row_bytes, [&](std::int64_t i) {
    const std::uint8_t* row = matrix.Row(ids[static_cast<std::size_t>(i)]);
    std::uint8_t* copy = out + i * row_bytes;
    if (matrix.format == Format::kQ4_0Superblock) {
      RepackSuperblockToQ4_0(row, 1, matrix.columns, copy);
    } else {
      std::memcpy(copy, row, static_cast<std::size_t>(row_bytes));
    }
  });
}

}  // namespace powerinfer
