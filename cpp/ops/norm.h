// Normalisation of rows.
#pragma once

#include <cstdint>

#include "base/thread_team.h"
#include "base/views.h"

namespace powerinfer {

/// out[t, i] = x[t, i] / sqrt(mean_i(x[t, i]^2) + eps) * weight[i]. weight: f32[columns]. out may
/// be x. Tolerance: tests/support/tolerances.py.
void RmsNorm(ThreadTeam& team, RowsView<const float> x, const float* weight, float eps,
             RowsView<float> out);

/// The same of one row f32[columns], on this thread.
void RmsNormRow(const float* row, std::int64_t columns, const float* weight, float eps, float* out);

/// out[t, i] = (x[t, i] - mean) / sqrt(var + eps) * weight[i] + bias[i], population variance in two
/// passes. bias may be null; out may be x.
void LayerNorm(ThreadTeam& team, RowsView<const float> x, const float* weight, const float* bias,
               float eps, RowsView<float> out);

}  // namespace powerinfer
