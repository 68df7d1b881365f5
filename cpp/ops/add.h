// Sums of activations.
#pragma once

#include "base/thread_team.h"
#include "base/views.h"

namespace powerinfer {

/// x[t, i] += y[t, i]; both have the same shape and do not overlap unless they are the same.
void Add(ThreadTeam& team, RowsView<float> x, RowsView<const float> y);

}  // namespace powerinfer
