// A mixture of experts in one call: its router, the experts that each token chose, and the weighted
// sum of their results.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "sparse/expert_pairs.h"
#include "sparse/ffn.h"
#include "sparse/fired_bits.h"
#include "sparse/neuron_list.h"
#include "sparse/predictor.h"

namespace powerinfer {

/// Choice of the neurons of the chosen experts that run, if not by their gate values: a predictor,
/// or lists of ids among the neurons of all experts; one of them or neither.
struct NeuronChoice {
  const PredictorView* predictor = nullptr;
  RowsView<const float> predictor_input;  ///< f32[num_tokens, width of the predictor's input]
  const NeuronIds* ids = nullptr;

  bool IsEmpty() const { return predictor == nullptr && ids == nullptr; }
  NeuronChoice Tokens(std::int64_t first, std::int64_t count, NeuronIds* own_ids) const;
};

/// out = sum over a token's experts e, ascending, of weight_e * expert_e(x), for a block with a
/// router, which sees router_input: f32[num_tokens, columns of the router]. x and out are as in
/// ffn.h. A token's bits depend on its own rows and their kind, not on the others, on threads or on
/// cuts; rows of weights are read once for up to kMaxBatchTokens decode rows. `fired`: for prompt
/// rows without a choice only; neurons of experts that a token did not choose do not fire.
void RunExperts(const OpContext& context, RowsView<const float> x,
                RowsView<const float> router_input, const FFNView& ffn, const NeuronChoice& choice,
                RowsView<float> out, FFNStats* stats, const FiredBits& fired = {});

/// RunExperts over the neurons of each token's list, if the caller has chosen the experts: weights
/// f32[num_tokens, num_experts] are 0 for those that a token does not use, and not 0 for at most as
/// many as the router chooses. Without the biases of down, and without counting the router.
void RunWeightedExperts(const OpContext& context, RowsView<const float> x,
                        RowsView<const float> weights, const FFNView& ffn, const NeuronIds& ids,
                        RowsView<float> out, FFNStats* stats);

/// RunExperts for at most kMaxBatchTokens decode rows, and for prompt rows; experts must be filled.
void RunDecodeExperts(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                      const ExpertPairs& pairs, const NeuronChoice& choice, RowsView<float> out,
                      FFNStats* stats);
void RunPromptExperts(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                      const ExpertPairs& pairs, const NeuronChoice& choice, RowsView<float> out,
                      FFNStats* stats, const FiredBits& fired);

}  // namespace powerinfer
