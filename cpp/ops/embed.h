// Embedding rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// out[t, :] = row token_ids[t] of table. out: f32[token_ids.size(), table.columns].
/// Throws std::out_of_range if an id is not in [0, table.rows).
void Embed(const OpContext& context, const MatrixView& table,
           std::span<const std::int32_t> token_ids, RowsView<float> out);

}  // namespace powerinfer
