// What every operation runs on.
#pragma once

#include "base/thread_team.h"
#include "kernels/kernel_table.h"
#include "ops/workspace.h"

namespace powerinfer {

/// The threads, their scratch memory and their kernels. Operators of one team use no others, so
/// that teams with different kernels never change each other's bits.
struct OpContext {
  ThreadTeam& team;
  Workspace& workspace;
  const KernelTable& kernels;

  /// With further scratch, for an operation whose results must last while another one runs.
  OpContext Nested() const { return {team, workspace.Nested(), kernels}; }
};

}  // namespace powerinfer
