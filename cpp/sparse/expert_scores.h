// Rows by pair of expert and token, for decode.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "kernels/kernel_table.h"
#include "ops/op_context.h"
#include "sparse/expert_pairs.h"
#include "sparse/ffn.h"
#include "sparse/predictor.h"

namespace powerinfer {

/// rows[token of the pair] for every pair, so that an expert's rows are contiguous; in the scratch
/// of `context`.
const ActivationRow* PairRows(const OpContext& context, const ActivationRow* rows,
                              const ExpertPairs& pairs);

/// The input of the predictor's stages, for every pair. x: f32[num_tokens, hidden_size], at most
/// kMaxBatchTokens rows. Runs the hidden layer, or those of the chosen experts. The scratch is
/// context.Nested().
const ActivationRow* StageInputOfPairs(const OpContext& context, RowsView<const float> x,
                                       const PredictorView& predictor, const ExpertPairs& pairs,
                                       FFNStats* stats);

}  // namespace powerinfer
