// Embedding rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "base/views.h"
#include "ops/linear.h"

namespace powerinfer {

/// out[t, :] = row token_ids[t] of table. out: f32[token_ids.size(), table.columns].
/// Throws std::out_of_range if an id is not in [0, table.rows).
void Embed(ThreadTeam& team, const MatrixView& table, std::span<const std::int32_t> token_ids,
           RowsView<float> out);

}  // namespace powerinfer
