#include "ops/embed.h"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "base/row_chunks.h"

namespace powerinfer {

void Embed(const OpContext& context, const MatrixView& table,
           std::span<const std::int32_t> token_ids, RowsView<float> out) {
  for (const std::int32_t id : token_ids) {
    if (id < 0 || id >= table.rows) {
      throw std::out_of_range("token id " + std::to_string(id) + " is not in [0, " +
                              std::to_string(table.rows) + ")");
    }
  }
  const DequantizeRowFn dequantize =
      context.kernels.dequantize_row[static_cast<std::size_t>(table.format)];
  const auto num_tokens = static_cast<std::int64_t>(token_ids.size());
  ForEachRow(context.team, num_tokens, table.columns, [&](std::int64_t t) {
    dequantize(table.Row(token_ids[static_cast<std::size_t>(t)]), table.columns, out.Row(t));
  });
}

}  // namespace powerinfer
