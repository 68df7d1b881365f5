// The context that every operation runs in.
#pragma once

#include <cstdint>

#include "base/thread_team.h"
#include "kernels/kernel_table.h"
#include "kernels/read_way.h"
#include "ops/workspace.h"

namespace powerinfer {

/// The origin of the rows of a call. It alone decides the arithmetic, never the number of rows: a
/// row's bits depend neither on the others nor on how a prompt was cut.
enum class RowKind : std::uint8_t {
  kDecode,  ///< generated (or drafted) one at a time: weights are read once for up to 32 rows
  kPrompt,  ///< given many at a time: products in blocks
};

/// The threads, their scratch memory, their kernels and the settings of reads. Operators of one
/// team use no others, so that teams with different kernels never change each other's bits.
struct OpContext {
  ThreadTeam& team;
  Workspace& workspace;
  const KernelTable& kernels;
  RowKind rows = RowKind::kDecode;
  const ReadWays& ways = kDefaultReadWays;

  /// The same with further scratch, for an operation whose results must last while another one
  /// runs.
  OpContext Nested() const { return {team, workspace.Nested(), kernels, rows, ways}; }
  /// The same for rows of this kind.
  OpContext For(RowKind kind) const { return {team, workspace, kernels, kind, ways}; }
};

}  // namespace powerinfer
