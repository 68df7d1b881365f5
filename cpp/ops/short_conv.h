// The gated short convolution of LFM2.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "ops/state.h"

namespace powerinfer {

/// out = c * conv(b * u); x: f32[num_tokens, 3 * d], b, c and u of a token; out: f32[num_tokens,
/// d]. weight: f32[d * num_taps], see Convolution. A slot of `state` is num_taps - 1 columns of b *
/// u. Throws as StateSpans.
void ShortConv(const OpContext& context, RowsView<const float> x, const float* weight,
               std::int64_t num_taps, const StateLayer& state, const BatchView& batch,
               RowsView<float> out);

/// x[t, i] *= sigmoid(g[t, i]), of the same shape.
void Gate(const OpContext& context, RowsView<float> x, RowsView<const float> g);

}  // namespace powerinfer
