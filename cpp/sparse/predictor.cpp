#include "sparse/predictor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "sparse/neuron_sums.h"
#include "sparse/prefill_pairs.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

using Clock = std::chrono::steady_clock;

// Decode rows scored at once when ids are asked for: more would only lengthen the lists.
constexpr std::int64_t kTokensPerPass = kMaxDotTokens;
// Numbers that one thread copies faster than it wakes the team.
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

RowsView<const float> Columns(RowsView<float> x, std::int64_t count) {
  return {x.data, x.rows, count, x.stride};
}

/// relu(fc1 input) with zeros behind; NaN stays NaN.
RowsView<float> HiddenLayer(const OpContext& context, RowsView<float> input,
                            const MatrixView& fc1) {
  const std::int64_t width = RoundUp(fc1.rows, kPredictorPadding);
  RowsView<float> hidden{
      context.workspace.Get<float>(Scratch::kPredictorHidden, input.rows * width), input.rows,
      width, width};
  const LinearItem item{fc1, nullptr, {hidden.data, hidden.rows, fc1.rows, width}};
  Linear(context, Columns(input, fc1.columns), std::span(&item, 1));
  ForEachRow(context, input.rows, width, [&](std::int64_t token) {
    float* row = hidden.Row(token);
    for (std::int64_t i = 0; i < fc1.rows; ++i) row[i] = row[i] <= 0.0F ? 0.0F : row[i];
    std::fill(row + fc1.rows, row + width, 0.0F);
  });
  return hidden;
}

/// Bytes of one thread's scratch: scores and a list.
struct ThreadScratch {
  std::int64_t scores_bytes;
  std::int64_t num_bytes;

  ThreadScratch(std::int64_t max_neurons, std::int64_t num_tokens)
      : scores_bytes(max_neurons * num_tokens * std::int64_t{sizeof(float)}),
        num_bytes(RoundUp(scores_bytes + NeuronList::NumBytes(max_neurons, num_tokens), 64)) {}
};

/// Where PredictNeurons collects ids before they are moved together.
struct RangeIds {
  const NeuronRanges& ranges;
  std::int32_t* ids;     // i32[num_tokens, intermediate_size], a range's from its first neuron on
  std::int64_t* counts;  // i64[num_ranges, num_tokens]
  std::int64_t num_tokens;
  std::int64_t size;

  void Take(std::int64_t range, const NeuronList& list) const {
    std::int64_t* count = counts + range * num_tokens;
    std::fill_n(count, num_tokens, 0);
    for (std::int64_t i = 0; i < list.num_neurons; ++i) {
      for (std::int64_t entry = list.Begin(i); entry < list.ends[i]; ++entry) {
        const std::int32_t token = list.tokens[entry];
        ids[token * size + ranges.Begin(range) + count[token]++] = list.ids[i];
      }
    }
  }

  void Append(std::int64_t token, std::vector<std::int32_t>* out) const {
    for (std::int64_t range = 0; range < ranges.Count(); ++range) {
      const std::int32_t* first = ids + token * size + ranges.Begin(range);
      out->insert(out->end(), first, first + counts[range * num_tokens + token]);
    }
  }
};

/// PredictNeurons for prompt rows, at most kMaxBlockTokens.
void PredictPrompt(const OpContext& context, RowsView<const float> x,
                   const PredictorView& predictor, std::vector<std::int64_t>* offsets,
                   std::vector<std::int32_t>* ids, PredictorStats* stats) {
  const RowsView<float> input = PredictorInput(context.Nested(), x, predictor, stats);
  const std::int64_t size = predictor.IntermediateSize();
  const RowsView<float> scores =
      Rows(context.workspace.Get<float>(Scratch::kGate, x.rows * size), x.rows, size);
  const TokenPairs pairs{
      x.rows, size, context.workspace.Get<std::int32_t>(Scratch::kActiveIds, x.rows * size),
      scores.data, context.workspace.Get<std::int64_t>(Scratch::kCounts, x.rows)};
  const ScoreStage& first = predictor.stages[0];
  const LinearItem item{first.matrix, first.bias, scores};
  Linear(context, Columns(input, first.matrix.columns), std::span(&item, 1));
  stats->bytes_read += first.matrix.NumBytes();
  const auto list = [&](std::int64_t token, std::int32_t) {
    pairs.counts[token] =
        context.kernels.list_from(scores.Row(token), size, first.threshold, pairs.Ids(token));
  };
  context.team.ParallelFor(x.rows, std::ref(list));
  for (std::int64_t i = 1; i < predictor.num_stages; ++i) {
    const ScoreStage& stage = predictor.stages[static_cast<std::size_t>(i)];
    const NeededRows needed = FindNeeded(context, pairs);
    MultiplyPairs(context, Columns(input, stage.matrix.columns), stage.matrix, stage.bias, pairs,
                  needed, pairs.values);
    stats->bytes_read += needed.Count() * stage.matrix.row_bytes;
    const auto keep = [&](std::int64_t token, std::int32_t) {
      KeepPairs(pairs, token, [&](float score) { return stage.Passes(score); });
    };
    context.team.ParallelFor(x.rows, std::ref(keep));
  }
  for (std::int64_t token = 0; token < x.rows; ++token) {
    ids->insert(ids->end(), pairs.Ids(token), pairs.Ids(token) + pairs.counts[token]);
    offsets->push_back(static_cast<std::int64_t>(ids->size()));
  }
}

/// PredictNeurons for decode rows, at most kTokensPerPass.
void PredictBlock(const OpContext& context, RowsView<const float> x, const PredictorView& predictor,
                  std::vector<std::int64_t>* offsets, std::vector<std::int32_t>* ids,
                  PredictorStats* stats) {
  const PreparedPredictor prepared(context, x, predictor, stats);
  const std::int64_t size = predictor.IntermediateSize();
  const NeuronRanges ranges(size);
  const ThreadScratch scratch(ranges.MaxSize(), x.rows);
  auto* memory = context.workspace.Get<std::uint8_t>(Scratch::kNeuronLists,
                                                     context.team.NumThreads() * scratch.num_bytes);
  auto* bytes =
      context.workspace.Get<std::int64_t>(Scratch::kCounts, ranges.Count() * (x.rows + 1));
  const RangeIds found{ranges,
                       context.workspace.Get<std::int32_t>(Scratch::kActiveIds, x.rows * size),
                       bytes + ranges.Count(), x.rows, size};
  const auto run = [&](std::int64_t range, std::int32_t thread) {
    std::uint8_t* own = memory + thread * scratch.num_bytes;
    NeuronList list(own + scratch.scores_bytes, ranges.MaxSize(), x.rows);
    bytes[range] = prepared.Score(ranges.Begin(range), ranges.End(range),
                                  reinterpret_cast<float*>(own), &list);
    found.Take(range, list);
  };
  context.team.ParallelFor(ranges.Count(), std::ref(run));
  for (std::int64_t range = 0; range < ranges.Count(); ++range) stats->bytes_read += bytes[range];
  for (std::int64_t token = 0; token < x.rows; ++token) {
    found.Append(token, ids);
    offsets->push_back(static_cast<std::int64_t>(ids->size()));
  }
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

namespace {

/// PredictNeurons of one expert after the other; ids count neurons of all.
void PredictExperts(const OpContext& context, RowsView<const float> x,
                    const PredictorView& predictor, std::vector<std::int64_t>* offsets,
                    std::vector<std::int32_t>* ids, PredictorStats* stats) {
  const auto count = static_cast<std::size_t>(predictor.num_experts);
  std::vector<std::vector<std::int64_t>> ends(count);
  std::vector<std::vector<std::int32_t>> found(count);
  for (std::size_t expert = 0; expert < count; ++expert) {
    const auto own = predictor.Expert(static_cast<std::int64_t>(expert), predictor.num_experts);
    PredictNeurons(context, x, own, &ends[expert], &found[expert], stats);
    const auto first =
        static_cast<std::int32_t>(expert) * static_cast<std::int32_t>(own.IntermediateSize());
    for (std::int32_t& id : found[expert]) id += first;
  }
  offsets->assign(1, 0);
  ids->clear();
  for (std::int64_t token = 0; token < x.rows; ++token) {
    for (std::size_t expert = 0; expert < count; ++expert) {
      const std::int64_t* own = ends[expert].data() + token;
      ids->insert(ids->end(), found[expert].begin() + own[0], found[expert].begin() + own[1]);
    }
    offsets->push_back(static_cast<std::int64_t>(ids->size()));
  }
}

}  // namespace

void PredictNeurons(const OpContext& context, RowsView<const float> x,
                    const PredictorView& predictor, std::vector<std::int64_t>* offsets,
                    std::vector<std::int32_t>* ids, PredictorStats* stats) {
  if (predictor.HasExpertLayers()) {
    PredictExperts(context, x, predictor, offsets, ids, stats);
    return;
  }
  const Clock::time_point start = Clock::now();
  offsets->assign(1, 0);
  ids->clear();
  PredictorStats inner;
  const bool is_prompt = context.rows == RowKind::kPrompt;
  const std::int64_t step = is_prompt ? kMaxBlockTokens : kTokensPerPass;
  for (std::int64_t token = 0; token < x.rows; token += step) {
    const RowsView<const float> block = x.Some(token, std::min(step, x.rows - token));
    (is_prompt ? PredictPrompt : PredictBlock)(context, block, predictor, offsets, ids, &inner);
  }
  stats->predicted += static_cast<std::int64_t>(ids->size());
  stats->bytes_read += inner.bytes_read;
  stats->seconds += SecondsSince(start);
}

}  // namespace powerinfer
