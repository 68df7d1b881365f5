#include "sparse/experts.h"

#include <algorithm>

namespace powerinfer {
namespace {

void FillExperts(const OpContext& context, const FFNView& ffn, const NeuronChoice& choice,
                 const ExpertPairs& pairs) {
  if (ffn.filler != nullptr) ffn.filler->Fill(context, pairs.Experts());
  if (choice.predictor == nullptr || choice.predictor->filler == nullptr) return;
  choice.predictor->filler->Fill(context, pairs.Experts());
}

}  // namespace

NeuronChoice NeuronChoice::Tokens(std::int64_t first, std::int64_t count,
                                  NeuronIds* own_ids) const {
  NeuronChoice own;
  if (predictor != nullptr) {
    own.predictor = predictor;
    own.predictor_input = predictor_input.Some(first, count);
  }
  if (ids != nullptr) {
    *own_ids = ids->Tokens(first, count);
    own.ids = own_ids;
  }
  return own;
}

void RunExperts(const OpContext& context, RowsView<const float> x,
                RowsView<const float> router_input, const FFNView& ffn, const NeuronChoice& choice,
                RowsView<float> out, FFNStats* stats) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  if (x.rows == 0) return;
  const std::int64_t num_used = ffn.router.num_used;
  auto* ids = context.workspace.Get<std::int32_t>(Scratch::kRouteIds, x.rows * num_used);
  auto* weights = context.workspace.Get<float>(Scratch::kRouteWeights, x.rows * num_used);
  Route(context, router_input, ffn.router, ids, weights);
  stats->total += x.rows * ffn.IntermediateSize();
  stats->bytes_read += ffn.router.matrix.NumBytes();
  const bool is_prompt = context.rows == RowKind::kPrompt;
  const std::int64_t step = is_prompt ? x.rows : kMaxBatchTokens;
  for (std::int64_t first = 0; first < x.rows; first += step) {
    const std::int64_t count = std::min(step, x.rows - first);
    const ExpertPairs pairs =
        GroupPairs(context, ids + first * num_used, weights + first * num_used, count, num_used,
                   ffn.NumExperts());
    FillExperts(context, ffn, choice, pairs);
    NeuronIds own_ids;
    const NeuronChoice own = choice.Tokens(first, count, &own_ids);
    (is_prompt ? RunPromptExperts : RunDecodeExperts)(context, x.Some(first, count), ffn, pairs,
                                                      own, out.Some(first, count), stats);
  }
}

}  // namespace powerinfer
