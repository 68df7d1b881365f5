// Products of a block of tokens with rows of neurons that fire for few of them: only the pairs that
// fire are computed. A row is read and decoded once for all tokens.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"
#include "sparse/prefill_pairs.h"

namespace powerinfer {

/// up[t * num_neurons + k] = dot(row ids[k], x[t]) + bias[ids[k]] for the pairs of split.rarely,
/// with ids = pairs.Ids(t); other places stay as they are. bias may be null.
void MultiplyPairs(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                   const float* bias, const FiringPairs& pairs, const NeuronSplit& split,
                   float* up);

/// What is left of the pairs when their values are known: places in split.rarely, ascending.
struct ValuedPairs {
  std::int64_t stride = 0;               ///< from one token's list to the next
  const std::int32_t* places = nullptr;  ///< i32[num_tokens, stride]: counts[t] of row t
  const float* values = nullptr;         ///< f32[num_tokens, stride]
  const std::int64_t* counts = nullptr;  ///< i64[num_tokens]
};

/// out[t, c] += sum over t's pairs, in order, of value * matrix[neuron, c].
void AddPairs(const OpContext& context, const MatrixView& matrix, const ValuedPairs& pairs,
              const NeuronSplit& split, RowsView<float> out);

}  // namespace powerinfer
