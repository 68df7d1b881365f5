// Sums and products of activations.
#pragma once

#include "base/thread_team.h"
#include "base/views.h"
#include "ops/op_context.h"

namespace powerinfer {

/// x[t, i] += y[t, i]; both have the same shape and do not overlap unless they are the same.
void Add(ThreadTeam& team, RowsView<float> x, RowsView<const float> y);

/// x[t, i] *= factor.
void Scale(ThreadTeam& team, RowsView<float> x, float factor);

/// x[t, i] = gelu(x[t, i]) * y[t, i], in the tanh approximation; shapes as of `Add`.
void GeluGate(const OpContext& context, RowsView<float> x, RowsView<const float> y);

}  // namespace powerinfer
