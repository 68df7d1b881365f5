// The ids of neurons that a predictor lets pass.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include "ops/blocked_product.h"
#include "sparse/neuron_ffn.h"
#include "sparse/neuron_sums.h"
#include "sparse/predictor.h"
#include "sparse/prefill_pairs.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

using Clock = std::chrono::steady_clock;

// Decode rows scored at once when ids are wanted: more would only lengthen the lists.
constexpr std::int64_t kTokensPerPass = kMaxDotTokens;
// Maximum scores of prompt rows at once: all experts of a layer may have many more neurons than a
// dense block.
constexpr std::int64_t kMaxScores = std::int64_t{1} << 23;

std::int64_t TokensPerPass(RowKind rows, std::int64_t num_neurons) {
  if (rows != RowKind::kPrompt) return kTokensPerPass;
  return std::clamp(kMaxScores / std::max<std::int64_t>(num_neurons, 1), kTokensPerPass,
                    kMaxBlockTokens);
}

/// Buffers in which PredictNeurons collects ids before they are moved together.
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
  Linear(context, ColumnsFor(first.matrix, input), std::span(&item, 1));
  stats->bytes_read += first.matrix.NumBytes();
  const auto list = [&](std::int64_t token, std::int32_t) {
    pairs.counts[token] =
        context.kernels.list_from(scores.Row(token), size, first.threshold, pairs.Ids(token));
  };
  context.team.ParallelFor(x.rows, std::ref(list));
  for (std::int64_t i = 1; i < predictor.num_stages; ++i) {
    const ScoreStage& stage = predictor.stages[static_cast<std::size_t>(i)];
    const NeededRows needed = FindNeeded(context, pairs);
    MultiplyPairs(context, ColumnsFor(stage.matrix, input), stage.matrix, stage.bias, pairs, needed,
                  pairs.values);
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
  const RangeScratch scratch(context, ranges.MaxSize(), x.rows);
  auto* bytes =
      context.workspace.Get<std::int64_t>(Scratch::kCounts, ranges.Count() * (x.rows + 1));
  const RangeIds found{ranges,
                       context.workspace.Get<std::int32_t>(Scratch::kActiveIds, x.rows * size),
                       bytes + ranges.Count(), x.rows, size};
  const auto run = [&](std::int64_t range, std::int32_t thread) {
    NeuronList list = scratch.EmptyList(thread);
    bytes[range] = prepared.Score(ranges.Begin(range), ranges.End(range),
                                  static_cast<float*>(scratch.Scores(thread)), &list);
    found.Take(range, list);
  };
  context.team.ParallelFor(ranges.Count(), std::ref(run));
  for (std::int64_t range = 0; range < ranges.Count(); ++range) stats->bytes_read += bytes[range];
  for (std::int64_t token = 0; token < x.rows; ++token) {
    found.Append(token, ids);
    offsets->push_back(static_cast<std::int64_t>(ids->size()));
  }
}

/// PredictNeurons expert by expert; ids count neurons of all.
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
  const std::int64_t step = TokensPerPass(context.rows, predictor.IntermediateSize());
  for (std::int64_t token = 0; token < x.rows; token += step) {
    const RowsView<const float> block = x.Some(token, std::min(step, x.rows - token));
    (is_prompt ? PredictPrompt : PredictBlock)(context, block, predictor, offsets, ids, &inner);
  }
  stats->predicted += static_cast<std::int64_t>(ids->size());
  stats->bytes_read += inner.bytes_read;
  stats->seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace powerinfer
