#include "sparse/predictor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include "base/rounding.h"

namespace powerinfer {
namespace {

using Clock = std::chrono::steady_clock;

// Below this many numbers, copying on one thread is faster than waking the team.
constexpr std::int64_t kAloneSize = 32 * 1024;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Calls body(row) for `count` rows of `width` numbers.
template <typename Body>
void ForEachRow(const OpContext& context, std::int64_t count, std::int64_t width,
                const Body& body) {
  if (count * width < kAloneSize) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  const auto run = [&](std::int64_t i, std::int32_t) { body(i); };
  context.team.ParallelFor(count, std::ref(run));
}

/// relu(fc1 input) padded with zeros; NaN stays NaN.
RowsView<float> HiddenLayer(const OpContext& context, RowsView<float> input,
                            const MatrixView& fc1) {
  const std::int64_t width = RoundUp(fc1.rows, kPredictorPadding);
  RowsView<float> hidden{
      context.workspace.Get<float>(Scratch::kPredictorHidden, input.rows * width), input.rows,
      width, width};
  const LinearItem item{fc1, nullptr, {hidden.data, hidden.rows, fc1.rows, width}};
  Linear(context, ColumnsFor(fc1, input), std::span(&item, 1));
  ForEachRow(context, input.rows, width, [&](std::int64_t token) {
    float* row = hidden.Row(token);
    for (std::int64_t i = 0; i < fc1.rows; ++i) row[i] = row[i] <= 0.0F ? 0.0F : row[i];
    std::fill(row + fc1.rows, row + width, 0.0F);
  });
  return hidden;
}

}  // namespace

void ScoreRows(const OpContext& context, const MatrixView& matrix, const float* bias,
               const ActivationRow* x, std::int64_t num_tokens, std::int64_t begin,
               std::int64_t end, float* out, std::int64_t stride) {
  const std::int64_t ahead = context.ways.Ahead(matrix.format, num_tokens);
  const DotRowsFn dot_rows = context.kernels.dot_rows[static_cast<std::size_t>(matrix.format)];
  dot_rows(matrix.Row(begin), matrix.row_bytes, end - begin, matrix.columns, x, num_tokens, out,
           stride, ahead);
  if (bias == nullptr) return;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    float* row = out + token * stride;
    for (std::int64_t i = 0; i < end - begin; ++i) row[i] += bias[begin + i];
  }
}

PredictorView PredictorView::Expert(std::int64_t expert, std::int64_t count) const {
  PredictorView own = *this;
  own.num_experts = 1;
  own.filler = nullptr;
  if (HasExpertLayers()) own.fc1 = fc1.Part(expert, count);
  const std::int64_t first = IntermediateSize() / count * expert;
  for (std::int64_t i = 0; i < num_stages; ++i) {
    ScoreStage& stage = own.stages[static_cast<std::size_t>(i)];
    stage.matrix = stage.matrix.Part(expert, count);
    if (stage.bias != nullptr) stage.bias += first;
  }
  return own;
}

RowsView<float> CenteredInput(const OpContext& context, RowsView<const float> x,
                              const PredictorView& predictor) {
  const std::int64_t width = RoundUp(x.columns, kPredictorPadding);
  RowsView<float> input{context.workspace.Get<float>(Scratch::kPredictorInput, x.rows * width),
                        x.rows, width, width};
  const float* center = predictor.center;
  ForEachRow(context, x.rows, width, [&](std::int64_t token) {
    const float* from = x.Row(token);
    float* to = input.Row(token);
    for (std::int64_t i = 0; i < x.columns; ++i) {
      to[i] = center == nullptr ? from[i] : from[i] - center[i];
    }
    std::fill(to + x.columns, to + width, 0.0F);
  });
  return input;
}

const ActivationRow* PrepareStageInput(const OpContext& context, RowsView<const float> input,
                                       const PredictorView& predictor) {
  std::array<Format, kMaxScoreStages> formats;
  for (std::size_t i = 0; i < formats.size(); ++i) {
    formats[i] = predictor.stages[std::min(i, static_cast<std::size_t>(predictor.num_stages) - 1)]
                     .matrix.format;
  }
  return PrepareActivations(context, input, formats);
}

RowsView<float> PredictorInput(const OpContext& context, RowsView<const float> x,
                               const PredictorView& predictor, PredictorStats* stats) {
  const RowsView<float> input = CenteredInput(context, x, predictor);
  if (!predictor.HasHiddenLayer()) return input;
  stats->bytes_read += predictor.fc1.NumBytes();
  return HiddenLayer(context, input, predictor.fc1);
}

PreparedPredictor::PreparedPredictor(const OpContext& context, RowsView<const float> x,
                                     const PredictorView& predictor, PredictorStats* stats)
    : context_(context), predictor_(predictor), num_tokens_(x.rows) {
  const Clock::time_point start = Clock::now();
  const OpContext own = context.Nested();
  input_ = PrepareStageInput(own, ReadOnly(PredictorInput(own, x, predictor, stats)), predictor);
  stats->seconds += SecondsSince(start);
}

std::int64_t PreparedPredictor::Score(std::int64_t begin, std::int64_t end, float* scores,
                                      NeuronList* list) const {
  const std::int64_t count = end - begin;
  const ScoreStage& first = predictor_.stages[0];
  ScoreRows(context_, first.matrix, first.bias, input_, num_tokens_, begin, end, scores, count);
  list->AppendPassing(begin, count, scores, count, num_tokens_,
                      [&](float score) { return first.Passes(score); });
  std::int64_t bytes = count * first.matrix.row_bytes;
  for (std::int64_t i = 1; i < predictor_.num_stages; ++i) {
    const ScoreStage& stage = predictor_.stages[static_cast<std::size_t>(i)];
    bytes += list->num_neurons * stage.matrix.row_bytes;
    DotNeurons(context_, stage.matrix, stage.bias, input_, *list, list->values);
    list->Filter<false>([&](float score, float) { return stage.Passes(score); });
  }
  return bytes;
}

}  // namespace powerinfer
