#include "sparse/expert_scores.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>

#include "base/rounding.h"

namespace powerinfer {
namespace {

// Rows of hidden layers in one task.
constexpr std::int64_t kTaskRows = 64;

/// relu(fc1 of the pair's expert * input of its token) for every pair, padded with zeros.
RowsView<float> HiddenLayers(const OpContext& context, RowsView<const float> input,
                             const PredictorView& predictor, const ExpertPairs& pairs) {
  const MatrixView& fc1 = predictor.fc1;
  const std::int64_t rank = predictor.Rank();
  const std::int64_t width = RoundUp(rank, kPredictorPadding);
  const RowsView<float> hidden =
      Rows(context.workspace.Get<float>(Scratch::kPredictorHidden, pairs.NumPairs() * width),
           pairs.NumPairs(), width);
  const ActivationRow* rows =
      PairRows(context, PrepareActivations(context, input, std::array{fc1.format}), pairs);
  const std::int64_t per_expert = DivideUp(rank, kTaskRows);
  const auto run = [&](std::int64_t task, std::int32_t) {
    const std::int64_t place = task / per_expert;
    const std::int64_t begin = task % per_expert * kTaskRows;
    const std::int64_t end = std::min(begin + kTaskRows, rank);
    const std::int64_t at = pairs.experts[place] * rank;
    const std::int64_t first = pairs.First(place);
    ScoreRows(context, fc1, nullptr, rows + first, pairs.Count(place), at + begin, at + end,
              hidden.Row(first) + begin, width);
    for (std::int64_t pair = first; pair < first + pairs.Count(place); ++pair) {
      float* row = hidden.Row(pair);
      for (std::int64_t i = begin; i < end; ++i) row[i] = row[i] <= 0.0F ? 0.0F : row[i];
      if (end == rank) std::fill(row + rank, row + width, 0.0F);
    }
  };
  context.team.ParallelFor(per_expert * pairs.num_chosen, std::ref(run));
  return hidden;
}

}  // namespace

const ActivationRow* PairRows(const OpContext& context, const ActivationRow* rows,
                              const ExpertPairs& pairs) {
  auto* copies = context.workspace.Get<ActivationRow>(Scratch::kPairRows, pairs.NumPairs());
  for (std::int64_t pair = 0; pair < pairs.NumPairs(); ++pair) {
    copies[pair] = rows[pairs.tokens[pair]];
  }
  return copies;
}

const ActivationRow* StageInputOfPairs(const OpContext& context, RowsView<const float> x,
                                       const PredictorView& predictor, const ExpertPairs& pairs,
                                       FFNStats* stats) {
  const OpContext own = context.Nested();
  if (!predictor.HasExpertLayers()) {
    PredictorStats hidden;
    const PreparedPredictor prepared(context, x, predictor, &hidden);
    stats->predictor_bytes += hidden.bytes_read;
    stats->predictor_s += hidden.seconds;
    return PairRows(own, prepared.Input(), pairs);
  }
  const auto start = std::chrono::steady_clock::now();
  const RowsView<const float> input = ColumnsFor(predictor.fc1, CenteredInput(own, x, predictor));
  const RowsView<float> hidden = HiddenLayers(own, input, predictor, pairs);
  const ActivationRow* rows = PrepareStageInput(own, ReadOnly(hidden), predictor);
  stats->predictor_bytes += pairs.num_chosen * predictor.Rank() * predictor.fc1.row_bytes;
  stats->predictor_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return rows;
}

}  // namespace powerinfer
