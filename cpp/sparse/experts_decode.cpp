// Decode rows of a mixture of experts. The chosen experts are cut into tasks that all threads
// share; each task reads its rows once for all tokens of its expert.
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>

#include "base/rounding.h"
#include "sparse/expert_scores.h"
#include "sparse/experts.h"
#include "sparse/neuron_ffn.h"
#include "sparse/neuron_source.h"
#include "sparse/neuron_sums.h"

namespace powerinfer {
namespace {

// Neurons of a task that chooses some of an expert's: several experts give threads enough tasks,
// and each costs a vector of sums.
constexpr std::int64_t kRange = 256;

// Tasks of a product for each thread, if there is enough to do: long ones let the processor's
// prefetchers run, the last ones make threads wait for each other.
constexpr std::int64_t kTasksPerThread = 8;
constexpr std::int64_t kMinTaskBytes = 64 * 1024;
constexpr std::int64_t kMinTaskRows = 16;

/// Rows of an expert's matrix in one task, if `num_experts` of them are computed; no result depends
/// on it.
std::int64_t TaskRows(const OpContext& context, const MatrixView& matrix, std::int64_t num_rows,
                      std::int64_t num_experts) {
  const std::int64_t bytes =
      num_experts * num_rows * matrix.row_bytes / (kTasksPerThread * context.team.NumThreads());
  const std::int64_t most = context.ways.Of(matrix.format).chunk_bytes;
  const std::int64_t rows = std::clamp(bytes, kMinTaskBytes, std::max(most, kMinTaskBytes)) /
                            std::max<std::int64_t>(1, matrix.row_bytes);
  const std::int64_t tasks = DivideUp(num_rows, std::max(rows, kMinTaskRows));
  return DivideUp(num_rows, tasks);
}

/// A few tokens and the experts they chose.
class DecodeExperts {
 public:
  DecodeExperts(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                const ExpertPairs& pairs)
      : context_(context),
        ffn_(ffn),
        pairs_(pairs),
        size_(ffn.ExpertSize()),
        ranges_(size_, kRange),
        rows_(PairRows(context, PrepareInput(x), pairs)) {}

  void Run(const NeuronChoice& choice, RowsView<float> out, FFNStats* stats);

 private:
  const ActivationRow* PrepareInput(RowsView<const float> x) const {
    const std::array<Format, 2> formats = {ffn_.DecidingMatrix().format, ffn_.up.format};
    return PrepareActivations(context_, x, formats);
  }
  RowsView<float> PairValues(Scratch slot, std::int64_t columns) const {
    const std::int64_t count = pairs_.NumPairs();
    return Rows(context_.workspace.Get<float>(slot, count * columns), count, columns);
  }
  /// The first row of sums of an expert's range, one for each of its tokens.
  std::int64_t SumsRow(std::int64_t place, std::int64_t range) const {
    return ranges_.Count() * pairs_.First(place) + range * pairs_.Count(place);
  }

  template <typename Body>
  void ForRanges(const Body& body, FFNStats* stats);
  template <typename MakeSource>
  void RunRanges(const MakeSource& make_source, FFNStats* stats);
  void RunChosen(const NeuronChoice& choice, FFNStats* stats);
  void ComputeAll(FFNStats* stats);
  void ActivateRows(std::int64_t place, std::int64_t begin, std::int64_t end, FFNStats* stats);
  void TakeNeurons(std::int64_t place, std::int64_t range, NeuronList* list, FFNStats* stats);
  void GatherAll(FFNStats* stats);
  void PrepareSums();
  void AddSums(RowsView<float> out) const;
  bool IsListed(std::int64_t place, const NeuronChoice& choice) const;
  void MultiplyDown(const NeuronChoice& choice, RowsView<float> out, FFNStats* stats);

  const OpContext& context_;
  const FFNView& ffn_;
  const ExpertPairs& pairs_;
  std::int64_t size_;
  NeuronRanges ranges_;
  const ActivationRow* rows_;  // by pair
  RowsView<float> values_;     // f32[num_pairs, size], activated; unless only sums are needed
  RowsView<float> up_;         // likewise
  float* sums_ = nullptr;      // f32[num_ranges * num_pairs, hidden_size]: transposed down
  std::int64_t* num_terms_ = nullptr;
};

/// body(place of the expert, range, thread, stats) for all ranges of all chosen experts, those of
/// the longest ranges first.
template <typename Body>
void DecodeExperts::ForRanges(const Body& body, FFNStats* stats) {
  const std::int64_t count = ranges_.Count() * pairs_.num_chosen;
  auto* counts = context_.workspace.Get<FFNStats>(Scratch::kRangeStats, count);
  const auto run = [&](std::int64_t task, std::int32_t thread) {
    counts[task] = {};
    body(task % pairs_.num_chosen, task / pairs_.num_chosen, thread, counts + task);
  };
  context_.team.ParallelFor(count, std::ref(run));
  AddRangeStats(counts, count, context_.team.NumThreads(), stats);
}

void DecodeExperts::PrepareSums() {
  const std::int64_t count = ranges_.Count() * pairs_.NumPairs();
  sums_ = context_.workspace.Get<float>(Scratch::kPartials, count * ffn_.HiddenSize());
  num_terms_ = context_.workspace.Get<std::int64_t>(Scratch::kCounts, count);
}

/// Neurons of a range with their values: adds their rows of down, or keeps the values.
void DecodeExperts::TakeNeurons(std::int64_t place, std::int64_t range, NeuronList* list,
                                FFNStats* stats) {
  const std::int64_t first = pairs_.First(place);
  const std::int64_t count = pairs_.Count(place);
  if (!ffn_.is_down_transposed) {
    const std::int64_t begin = ranges_.Begin(range);
    ScatterNeurons(*list, pairs_.experts[place] * size_ + begin,
                   {values_.Row(first) + begin, count, ranges_.Size(range), size_});
    return;
  }
  for (std::int64_t e = 0; e < list->num_entries; ++e) {
    list->values[e] *= pairs_.weights[first + list->tokens[e]];
  }
  const std::int64_t row = SumsRow(place, range);
  SumNeurons(context_, ffn_.down, *list, num_terms_ + row,
             Rows(sums_ + row * ffn_.HiddenSize(), count, ffn_.HiddenSize()), stats);
}

/// make_source(first pair of an expert, number of its pairs) chooses its neurons.
template <typename MakeSource>
void DecodeExperts::RunRanges(const MakeSource& make_source, FFNStats* stats) {
  const RangeScratch scratch(context_, ranges_.MaxSize(), pairs_.num_tokens);
  const auto run = [&](std::int64_t place, std::int64_t range, std::int32_t thread,
                       FFNStats* counts) {
    const std::int64_t first = pairs_.First(place);
    const auto source = make_source(first, pairs_.Count(place));
    const NeuronBatch batch{context_, ffn_, rows_ + first, pairs_.Count(place), source};
    NeuronList list = scratch.EmptyList(thread);
    const std::int64_t begin = pairs_.experts[place] * size_;
    batch.Activate(begin + ranges_.Begin(range), begin + ranges_.End(range), scratch.Scores(thread),
                   &list, counts);
    TakeNeurons(place, range, &list, counts);
  };
  ForRanges(run, stats);
}

/// gate and up of rows [begin, end) of an expert for all its tokens, activated.
void DecodeExperts::ActivateRows(std::int64_t place, std::int64_t begin, std::int64_t end,
                                 FFNStats* stats) {
  const std::int64_t first = pairs_.First(place);
  const std::int64_t count = pairs_.Count(place);
  const std::int64_t at = pairs_.experts[place] * size_;
  const auto score = [&](const MatrixView& matrix, const float* bias, RowsView<float> out) {
    ScoreRows(context_, matrix, bias, rows_ + first, count, at + begin, at + end,
              out.Row(first) + begin, size_);
    stats->bytes_read += (end - begin) * matrix.row_bytes;
  };
  stats->united += end - begin;
  score(ffn_.DecidingMatrix(), ffn_.DecidingBias(), values_);
  if (ffn_.HasGate()) score(ffn_.up, ffn_.up_bias, up_);
  for (std::int64_t pair = first; pair < first + count; ++pair) {
    stats->active +=
        Activate(context_.kernels, ffn_.activation, end - begin, values_.Row(pair) + begin,
                 ffn_.HasGate() ? up_.Row(pair) + begin : nullptr);
  }
}

/// All neurons of the chosen experts.
void DecodeExperts::ComputeAll(FFNStats* stats) {
  if (ffn_.HasGate()) up_ = PairValues(Scratch::kUp, size_);
  const std::int64_t rows = TaskRows(context_, ffn_.up, size_, pairs_.num_chosen);
  const std::int64_t per_expert = DivideUp(size_, rows);
  const std::int64_t count = per_expert * pairs_.num_chosen;
  auto* counts = context_.workspace.Get<FFNStats>(Scratch::kRangeStats, count);
  const auto run = [&](std::int64_t task, std::int32_t) {
    const std::int64_t begin = task % per_expert * rows;
    counts[task] = {};
    ActivateRows(task / per_expert, begin, std::min(begin + rows, size_), counts + task);
  };
  context_.team.ParallelFor(count, std::ref(run));
  AddRangeStats(counts, count, context_.team.NumThreads(), stats);
  stats->predicted += pairs_.NumPairs() * size_;
}

/// Rows of a transposed down of all neurons, in the same ranges as when neurons are skipped.
void DecodeExperts::GatherAll(FFNStats* stats) {
  const RangeScratch scratch(context_, ranges_.MaxSize(), pairs_.num_tokens);
  const auto run = [&](std::int64_t place, std::int64_t range, std::int32_t thread,
                       FFNStats* counts) {
    NeuronList list = scratch.EmptyList(thread);
    const std::int64_t begin = ranges_.Begin(range);
    list.AppendPassing(pairs_.experts[place] * size_ + begin, ranges_.Size(range),
                       values_.Row(pairs_.First(place)) + begin, size_, pairs_.Count(place),
                       [](float) { return true; });
    TakeNeurons(place, range, &list, counts);
  };
  ForRanges(run, stats);
}

/// Sums of ranges to sums of tokens: first the biases, then experts and ranges ascending.
void DecodeExperts::AddSums(RowsView<float> out) const {
  const std::int64_t hidden_size = ffn_.HiddenSize();
  const float* bias = ffn_.down_bias;
  const auto start = [&](std::int64_t token, std::int64_t first, std::int64_t count, float* block) {
    for (const std::int32_t pair : pairs_.Of(token)) {
      const float weight = pairs_.weights[pair];
      const std::int64_t at = pairs_.experts[pairs_.places[pair]] * hidden_size + first;
      // A weight that is NaN must show even where no neuron fires.
      for (std::int64_t i = 0; i < count; ++i) {
        block[i] += weight * (bias != nullptr ? bias[at + i] : 0.0F);
      }
    }
  };
  const auto for_each = [&](std::int64_t token, const auto& add) {
    for (const std::int32_t pair : pairs_.Of(token)) {
      const std::int32_t place = pairs_.places[pair];
      for (std::int64_t range = 0; range < ranges_.Count(); ++range) {
        const std::int64_t row = SumsRow(place, range) + pair - pairs_.First(place);
        if (num_terms_[row] > 0) add(sums_ + row * hidden_size, 1.0F);
      }
    }
  };
  AddTerms(context_.team, ranges_.Count() * pairs_.NumPairs(), out, start, for_each);
}

/// True if an expert has anything to add: not if lists name none of its neurons and it has no bias,
/// as with experts whose neurons all lie on another device.
bool DecodeExperts::IsListed(std::int64_t place, const NeuronChoice& choice) const {
  if (choice.ids == nullptr || ffn_.down_bias != nullptr) return true;
  const std::int32_t* tokens = pairs_.tokens + pairs_.First(place);
  return std::any_of(tokens, tokens + pairs_.Count(place), [&](std::int32_t token) {
    const std::span<const std::int32_t> ids = choice.ids->Of(token);
    const std::int64_t begin = pairs_.experts[place] * size_;
    const auto first = std::lower_bound(ids.begin(), ids.end(), begin);
    return first != ids.end() && *first < begin + size_;
  });
}

/// The plain down of every pair's values, and the weighted sums of the results.
void DecodeExperts::MultiplyDown(const NeuronChoice& choice, RowsView<float> out, FFNStats* stats) {
  const std::int64_t hidden_size = ffn_.HiddenSize();
  const ActivationRow* input =
      PrepareActivations(context_, ReadOnly(values_), std::array{ffn_.down.format});
  const RowsView<float> results = PairValues(Scratch::kExpertOutput, hidden_size);
  const std::int64_t rows = TaskRows(context_, ffn_.down, hidden_size, pairs_.num_chosen);
  const std::int64_t per_expert = DivideUp(hidden_size, rows);
  const auto run = [&](std::int64_t task, std::int32_t) {
    const std::int64_t place = task / per_expert;
    const std::int64_t begin = task % per_expert * rows;
    const std::int64_t at = pairs_.experts[place] * hidden_size;
    const std::int64_t end = std::min(begin + rows, hidden_size);
    const std::int64_t first = pairs_.First(place);
    if (IsListed(place, choice)) {
      ScoreRows(context_, ffn_.down, ffn_.down_bias, input + first, pairs_.Count(place), at + begin,
                at + end, results.Row(first) + begin, hidden_size);
      return;
    }
    for (std::int64_t i = 0; i < pairs_.Count(place); ++i) {
      std::fill_n(results.Row(first + i) + begin, end - begin, 0.0F);
    }
  };
  context_.team.ParallelFor(per_expert * pairs_.num_chosen, std::ref(run));
  for (std::int64_t place = 0; place < pairs_.num_chosen; ++place) {
    stats->bytes_read += IsListed(place, choice) ? hidden_size * ffn_.down.row_bytes : 0;
  }
  const auto start = [](std::int64_t, std::int64_t, std::int64_t, float*) {};
  const auto for_each = [&](std::int64_t token, const auto& add) {
    for (const std::int32_t pair : pairs_.Of(token)) add(results.Row(pair), pairs_.weights[pair]);
  };
  AddTerms(context_.team, pairs_.NumPairs(), out, start, for_each);
}

/// The neurons that a predictor, lists or their gate values choose.
void DecodeExperts::RunChosen(const NeuronChoice& choice, FFNStats* stats) {
  if (choice.predictor != nullptr) {
    const PredictorView& predictor = *choice.predictor;
    const ActivationRow* input =
        StageInputOfPairs(context_, choice.predictor_input, predictor, pairs_, stats);
    const auto make = [&](std::int64_t first, std::int64_t count) {
      return PredictedNeurons({context_, predictor, input + first, count});
    };
    RunRanges(make, stats);
  } else if (choice.ids != nullptr) {
    const auto make = [&](std::int64_t first, std::int64_t count) {
      return ListedNeurons(choice.ids->Some(pairs_.tokens + first, count));
    };
    RunRanges(make, stats);
  } else {
    const auto make = [&](std::int64_t first, std::int64_t count) {
      return FiringNeurons(context_, ffn_, rows_ + first, count);
    };
    RunRanges(make, stats);
  }
}

void DecodeExperts::Run(const NeuronChoice& choice, RowsView<float> out, FFNStats* stats) {
  const bool is_whole = choice.IsEmpty() && !ffn_.SkipsNeurons();
  if (is_whole || !ffn_.is_down_transposed) values_ = PairValues(Scratch::kGate, size_);
  if (ffn_.is_down_transposed) PrepareSums();
  if (is_whole) {
    ComputeAll(stats);
    if (ffn_.is_down_transposed) GatherAll(stats);
  } else {
    RunChosen(choice, stats);
  }
  if (ffn_.is_down_transposed) {
    AddSums(out);
  } else {
    MultiplyDown(choice, out, stats);
  }
}

}  // namespace

void RunDecodeExperts(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                      const ExpertPairs& pairs, const NeuronChoice& choice, RowsView<float> out,
                      FFNStats* stats) {
  DecodeExperts(context, x, ffn, pairs).Run(choice, out, stats);
}

}  // namespace powerinfer
