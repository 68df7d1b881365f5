// Rows of a weight matrix as a file would hold them, for a device that has its own layouts.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "ops/linear.h"

namespace powerinfer {

/// Copies the rows `ids`, in this order, to `out`: u8[ids.size(), row bytes of the FileFormat of
/// the matrix' format]. Throws std::out_of_range for ids that the matrix does not have.
void CopyEncodedRows(ThreadTeam& team, const MatrixView& matrix, std::span<const std::int32_t> ids,
                     std::uint8_t* out);

}  // namespace powerinfer
