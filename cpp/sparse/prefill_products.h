// Products of single pairs of token and neuron in a block of tokens: a row of weights is read and
// decoded once for many tokens, a token's result does not depend on the others.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"
#include "sparse/prefill_pairs.h"

namespace powerinfer {

/// Numbers that are whole vectors of every instruction set.
inline constexpr std::int64_t kVector = 16;

/// out[t * num_neurons + k] = dot(row ids[k], x[t]) + bias[ids[k]] for every pair k of token t;
/// other places stay as they are. Formats that multiply in int8 do so. bias may be null.
void MultiplyPairs(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                   const float* bias, const TokenPairs& pairs, const NeededRows& needed,
                   float* out);

/// out[t, c] = bias[c] + sum over t's pairs, neurons ascending, of value * matrix[neuron, c] for
/// t of `tokens`. Their pairs' ids are places in `needed`. bias may be null.
void AddPairs(const OpContext& context, const MatrixView& matrix, const float* bias,
              const TokenPairs& pairs, const NeededRows& needed,
              std::span<const std::int32_t> tokens, RowsView<float> out);

}  // namespace powerinfer
