// Splitting per-row work over a team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/rounding.h"
#include "base/thread_team.h"

namespace powerinfer {

/// Calls body(row) for every row, in parallel if the work takes more than a few microseconds.
/// row_cost: elements touched per row.
template <typename Body>
void ForEachRow(ThreadTeam& team, std::int64_t num_rows, std::int64_t row_cost, const Body& body) {
  // A chunk of 16 Ki elements takes about as long as waking the team does.
  constexpr std::int64_t kElementsPerChunk = 16384;
  const std::int64_t rows_per_chunk =
      std::max<std::int64_t>(1, kElementsPerChunk / std::max<std::int64_t>(1, row_cost));
  const std::int64_t num_chunks = DivideUp(num_rows, rows_per_chunk);
  const auto run = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t end = std::min(num_rows, (chunk + 1) * rows_per_chunk);
    for (std::int64_t row = chunk * rows_per_chunk; row < end; ++row) body(row);
  };
  team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace powerinfer
