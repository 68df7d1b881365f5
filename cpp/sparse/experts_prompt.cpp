// Prompt rows of a mixture of experts: expert by expert, each as a block of its own for the tokens
// that chose it.
#include <algorithm>
#include <functional>
#include <vector>

#include "base/row_chunks.h"
#include "sparse/experts.h"

namespace powerinfer {
namespace {

/// Copies of the rows of an expert's tokens, contiguous.
RowsView<const float> Gather(const OpContext& context, Scratch slot, RowsView<const float> x,
                             std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const RowsView<float> rows =
      Rows(context.workspace.Get<float>(slot, count * x.columns), count, x.columns);
  ForEachRow(context.team, count, x.columns, [&](std::int64_t i) {
    std::copy_n(x.Row(tokens[static_cast<std::size_t>(i)]), x.columns, rows.Row(i));
  });
  return ReadOnly(rows);
}

/// The ids of some tokens that are neurons of one expert, counted from its first one.
struct ExpertIds {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ids;

  ExpertIds(const NeuronIds& all, std::span<const std::int32_t> tokens, std::int64_t first,
            std::int64_t size)
      : offsets(1, 0) {
    for (const std::int32_t token : tokens) {
      const std::span<const std::int32_t> own = all.Of(token);
      const auto begin = std::lower_bound(own.begin(), own.end(), first);
      const auto end = std::lower_bound(begin, own.end(), first + size);
      for (auto id = begin; id != end; ++id) {
        ids.push_back(static_cast<std::int32_t>(*id - first));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
};

/// One expert for its tokens, with their rows of x.
void RunExpert(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
               std::int64_t expert, std::span<const std::int32_t> tokens,
               const NeuronChoice& choice, RowsView<float> out, FFNStats* stats,
               const FiredBits& fired) {
  const FFNView own = ffn.Expert(expert);
  if (choice.predictor != nullptr) {
    const RowsView<const float> input =
        Gather(context, Scratch::kExpertPredictorInput, choice.predictor_input, tokens);
    const PredictorView predictor = choice.predictor->Expert(expert, ffn.NumExperts());
    RunPredictedFFN(context, x, own, predictor, input, out, stats);
  } else if (choice.ids != nullptr) {
    const std::int64_t size = ffn.ExpertSize();
    const ExpertIds ids(*choice.ids, tokens, expert * size, size);
    if (ids.ids.empty() && own.down_bias == nullptr) {
      // A plain down would be read for nothing.
      for (std::int64_t i = 0; i < x.rows; ++i) std::fill_n(out.Row(i), out.columns, 0.0F);
      return;
    }
    const NeuronIds listed{ids.offsets.data(), ids.ids.data(), x.rows};
    RunListedFFN(context, x, own, listed, out, stats);
  } else {
    RunFFN(context, x, own, out, stats, fired.Part(tokens.data(), expert * ffn.ExpertSize()));
  }
}

}  // namespace

void RunPromptExperts(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                      const ExpertPairs& pairs, const NeuronChoice& choice, RowsView<float> out,
                      FFNStats* stats, const FiredBits& fired) {
  ForEachRow(context.team, out.rows, out.columns,
             [&](std::int64_t token) { std::fill_n(out.Row(token), out.columns, 0.0F); });
  FFNStats sums;
  for (std::int64_t place = 0; place < pairs.num_chosen; ++place) {
    const std::int64_t first = pairs.First(place);
    const std::int64_t count = pairs.Count(place);
    const std::span tokens(pairs.tokens + first, static_cast<std::size_t>(count));
    const RowsView<const float> input = Gather(context, Scratch::kExpertInput, x, tokens);
    const RowsView<float> results =
        Rows(context.workspace.Get<float>(Scratch::kExpertOutput, count * out.columns), count,
             out.columns);
    RunExpert(context, input, ffn, pairs.experts[place], tokens, choice, results, &sums, fired);
    ForEachRow(context.team, count, out.columns, [&](std::int64_t i) {
      const float weight = pairs.weights[first + i];
      const float* row = results.Row(i);
      float* sum = out.Row(tokens[static_cast<std::size_t>(i)]);
      for (std::int64_t c = 0; c < out.columns; ++c) sum[c] += weight * row[c];
    });
  }
  sums.total = 0;  // the caller counts neurons of all experts
  *stats += sums;
}

}  // namespace powerinfer
