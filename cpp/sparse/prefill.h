// The feed-forward block for many tokens that computes, after the matrix that decides, only the
// pairs of token and neuron that fire, where that is faster.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "sparse/ffn.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// How a block of tokens is computed; tests and benchmarks force one.
enum class PrefillPath : std::int32_t { kFaster, kSkip, kDense };

/// out = down(activation(gate x, up x)) over the pairs of token and neuron that fire, and that
/// `mask` lists unless it is null; the others count as zero whatever their values are. x and out:
/// f32[num_tokens, hidden_size], not overlapping. For prompt rows.
///
/// The deciding matrix is multiplied with all tokens. Of the neurons that fire often in a block of
/// tokens, up and down are too; rows of the others meet the tokens they fire for. Where that would
/// save nothing, all is dense. A down that is not transposed is dense always. The choice depends on
/// the numbers and the kernels alone, so the bits do not depend on the number of threads.
void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats,
                   PrefillPath path = PrefillPath::kFaster);

}  // namespace powerinfer
