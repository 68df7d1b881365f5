#include "sparse/experts.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>

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

namespace {

/// Runs the experts that were chosen for each token, decode rows in batches.
void RunRouted(const OpContext& context, RowsView<const float> x, const std::int32_t* ids,
               const float* weights, const FFNView& ffn, const NeuronChoice& choice,
               RowsView<float> out, FFNStats* stats, const FiredBits& fired) {
  stats->total += x.rows * ffn.IntermediateSize();
  const std::int64_t num_used = ffn.router.num_used;
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
    const RowsView<const float> rows = x.Some(first, count);
    const RowsView<float> results = out.Some(first, count);
    if (is_prompt) {
      RunPromptExperts(context, rows, ffn, pairs, own, results, stats, fired);
    } else {
      RunDecodeExperts(context, rows, ffn, pairs, own, results, stats);
    }
  }
}

/// The experts of a token, ascending: those with a weight and, if they are fewer than num_used,
/// others without one.
void ListWeighted(std::span<const float> weights, std::int64_t num_used, std::int32_t* ids,
                  float* chosen) {
  const auto has_weight = [&](std::size_t expert) { return !(weights[expert] == 0.0F); };
  std::int64_t num_missing = num_used;
  for (std::size_t e = 0; e < weights.size(); ++e) num_missing -= has_weight(e) ? 1 : 0;
  std::int64_t count = 0;
  for (std::size_t e = 0; e < weights.size() && count < num_used; ++e) {
    if (!has_weight(e) && num_missing-- <= 0) continue;
    ids[count] = static_cast<std::int32_t>(e);
    chosen[count++] = weights[e];
  }
}

}  // namespace

void RunExperts(const OpContext& context, RowsView<const float> x,
                RowsView<const float> router_input, const FFNView& ffn, const NeuronChoice& choice,
                RowsView<float> out, FFNStats* stats, const FiredBits& fired) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  if (x.rows == 0) return;
  const std::int64_t num_used = ffn.router.num_used;
  auto* ids = context.workspace.Get<std::int32_t>(Scratch::kRouteIds, x.rows * num_used);
  auto* weights = context.workspace.Get<float>(Scratch::kRouteWeights, x.rows * num_used);
  const auto start = std::chrono::steady_clock::now();
  Route(context, router_input, ffn.router, ids, weights);
  stats->router_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  stats->router_bytes += ffn.router.matrix.NumBytes();
  stats->bytes_read += ffn.router.matrix.NumBytes();
  RunRouted(context, x, ids, weights, ffn, choice, out, stats, fired);
}

void RunWeightedExperts(const OpContext& context, RowsView<const float> x,
                        RowsView<const float> weights, const FFNView& ffn, const NeuronIds& ids,
                        RowsView<float> out, FFNStats* stats) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  if (x.rows == 0) return;
  const std::int64_t num_used = ffn.router.num_used;
  auto* experts = context.workspace.Get<std::int32_t>(Scratch::kRouteIds, x.rows * num_used);
  auto* chosen = context.workspace.Get<float>(Scratch::kRouteWeights, x.rows * num_used);
  for (std::int64_t token = 0; token < x.rows; ++token) {
    ListWeighted({weights.Row(token), static_cast<std::size_t>(weights.columns)}, num_used,
                 experts + token * num_used, chosen + token * num_used);
  }
  FFNView unbiased = ffn;
  unbiased.down_bias = nullptr;
  RunRouted(context, x, experts, chosen, unbiased, {nullptr, {}, &ids}, out, stats, {});
}

}  // namespace powerinfer
