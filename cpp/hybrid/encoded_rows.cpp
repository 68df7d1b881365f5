#include "hybrid/encoded_rows.h"

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/row_chunks.h"
#include "quant/superblock.h"

namespace powerinfer {

void CopyEncodedRows(ThreadTeam& team, const MatrixView& matrix, std::span<const std::int32_t> ids,
                     std::uint8_t* out) {
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < matrix.rows) continue;
    throw std::out_of_range("row " + std::to_string(id) + " is not in [0, " +
                            std::to_string(matrix.rows) + ")");
  }
  const Format file_format = FileFormat(matrix.format);
  const std::int64_t row_bytes = RowBytes(file_format, matrix.columns);
  const auto count = static_cast<std::int64_t>(ids.size());
  ForEachRow(team, count, row_bytes, [&](std::int64_t i) {
    const std::uint8_t* row = matrix.Row(ids[static_cast<std::size_t>(i)]);
    std::uint8_t* copy = out + i * row_bytes;
    if (matrix.format != file_format) {
      RepackFromSuperblocks(file_format, row, 1, matrix.columns, copy);
    } else {
      std::memcpy(copy, row, static_cast<std::size_t>(row_bytes));
    }
  });
}

}  // namespace powerinfer
