#include "sparse/neuron_ffn.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>

#include "base/rounding.h"
#include "sparse/neuron_sums.h"

namespace powerinfer {
namespace {

/// Destination of a range's values: sums of down rows, or their places among zeros.
class Output {
 public:
  Output(const OpContext& context, const FFNView& ffn, const NeuronRanges& ranges,
         std::int64_t num_tokens)
      : context_(context), ffn_(ffn), num_tokens_(num_tokens) {
    if (ffn.is_down_transposed) {
      const std::int64_t rows = ranges.Count() * num_tokens;
      sums_ = {context.workspace.Get<float>(Scratch::kPartials, rows * ffn.HiddenSize()),
               context.workspace.Get<std::int64_t>(Scratch::kCounts, rows), ranges.Count(),
               num_tokens, ffn.HiddenSize()};
    } else {
      const std::int64_t size = ffn.IntermediateSize();
      scattered_ =
          Rows(context.workspace.Get<float>(Scratch::kGate, num_tokens * size), num_tokens, size);
    }
  }

  void Take(std::int64_t range, std::int64_t begin, std::int64_t end, const NeuronList& list,
            FFNStats* stats) const {
    if (ffn_.is_down_transposed) {
      SumNeurons(context_, ffn_.down, list, &sums_.NumTerms(range, 0),
                 Rows(sums_.Row(range, 0), num_tokens_, sums_.columns), stats);
    } else {
      const std::int64_t size = scattered_.columns;
      ScatterNeurons(list, begin, {scattered_.data + begin, num_tokens_, end - begin, size});
    }
  }

  void Finish(RowsView<float> out, FFNStats* stats) const {
    if (ffn_.is_down_transposed) {
      AddRanges(context_.team, sums_, ffn_.down_bias, out);
      return;
    }
    const LinearItem item{ffn_.down, ffn_.down_bias, out};
    Linear(context_, ReadOnly(scattered_), std::span(&item, 1));
    stats->bytes_read += ffn_.down.NumBytes();
  }

 private:
  const OpContext& context_;
  const FFNView& ffn_;
  std::int64_t num_tokens_;
  RangeSums sums_;
  RowsView<float> scattered_;
};

}  // namespace

/// Drops neurons whose gate (ungated: up) value does not fire.
void NeuronBatch::KeepFiring(NeuronList* list) const {
  if (!ffn.activation.IsSparse()) return;
  VisitFires(ffn.activation, [&](const auto& fires) {
    list->Filter<false>([&](float z, float) { return fires(z); });
  });
}

void NeuronBatch::Activate(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                           FFNStats* stats) const {
  source.Fill(begin, end, scratch, list, stats);
  // Without a predictor or a list every neuron counts as predicted: its deciding row was read.
  stats->predicted += source.HasValues() ? (end - begin) * num_tokens : list->num_entries;
  if (!source.HasValues()) {
    DotNeurons(context, ffn.DecidingMatrix(), ffn.DecidingBias(), x, *list, list->values);
    stats->bytes_read += list->num_neurons * ffn.DecidingMatrix().row_bytes;
    KeepFiring(list);
  }
  if (ffn.HasGate()) {
    DotNeurons(context, ffn.up, ffn.up_bias, x, *list, list->up);
    stats->bytes_read += list->num_neurons * ffn.up.row_bytes;
    if (ffn.activation.kind == ActivationKind::kDRelu) {
      list->Filter<true>([](float, float u) { return !(u <= 0.0F); });
    }
  }
  powerinfer::Activate(context.kernels, ffn.activation, list->num_entries, list->values,
                       ffn.HasGate() ? list->up : nullptr);
  stats->active += list->num_entries;
  stats->united += list->num_neurons;
}

RangeScratch::RangeScratch(const OpContext& context, std::int64_t max_neurons,
                           std::int64_t max_tokens)
    : max_neurons_(max_neurons),
      max_tokens_(max_tokens),
      list_at_(RoundUp(max_neurons * max_tokens * 4, 64)),
      num_bytes_(RoundUp(list_at_ + NeuronList::NumBytes(max_neurons, max_tokens), 64)),
      memory_(context.workspace.Get<std::uint8_t>(Scratch::kNeuronLists,
                                                  context.team.NumThreads() * num_bytes_)) {}

void SumNeurons(const OpContext& context, const MatrixView& down, const NeuronList& list,
                std::int64_t* num_terms, RowsView<float> sums, FFNStats* stats) {
  const auto start = std::chrono::steady_clock::now();
  std::fill_n(num_terms, sums.rows, 0);
  for (std::int64_t e = 0; e < list.num_entries; ++e) ++num_terms[list.tokens[e]];
  for (std::int64_t token = 0; token < sums.rows; ++token) {
    if (num_terms[token] > 0) std::fill_n(sums.Row(token), sums.columns, 0.0F);
  }
  AddNeurons(context, down, list, sums);
  stats->down_bytes += list.num_neurons * down.row_bytes;
  stats->down_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ScatterNeurons(const NeuronList& list, std::int64_t begin, RowsView<float> values) {
  for (std::int64_t token = 0; token < values.rows; ++token) {
    std::fill_n(values.Row(token), values.columns, 0.0F);
  }
  for (std::int64_t i = 0; i < list.num_neurons; ++i) {
    for (std::int64_t e = list.Begin(i); e < list.ends[i]; ++e) {
      values.Row(list.tokens[e])[list.ids[i] - begin] = list.values[e];
    }
  }
}

void AddRangeStats(const FFNStats* ranges, std::int64_t count, std::int32_t num_threads,
                   FFNStats* stats) {
  FFNStats sum;
  for (std::int64_t i = 0; i < count; ++i) sum += ranges[i];
  const double used_threads = std::min<double>(num_threads, static_cast<double>(count));
  sum.bytes_read += sum.down_bytes;
  sum.predictor_s /= used_threads;
  sum.down_s /= used_threads;
  *stats += sum;
}

void RunChosenNeurons(const OpContext& context, const ActivationRow* x, std::int64_t num_tokens,
                      const FFNView& ffn, const NeuronSource& source, RowsView<float> out,
                      FFNStats* stats) {
  const NeuronRanges ranges(ffn.IntermediateSize());
  const RangeScratch scratch(context, ranges.MaxSize(), num_tokens);
  auto* range_stats = context.workspace.Get<FFNStats>(Scratch::kRangeStats, ranges.Count());
  const Output output(context, ffn, ranges, num_tokens);
  const NeuronBatch batch{context, ffn, x, num_tokens, source};
  const auto run = [&](std::int64_t range, std::int32_t thread) {
    NeuronList list = scratch.EmptyList(thread);
    FFNStats& counts = range_stats[range];
    counts = {};
    const std::int64_t begin = ranges.Begin(range);
    const std::int64_t end = ranges.End(range);
    batch.Activate(begin, end, scratch.Scores(thread), &list, &counts);
    output.Take(range, begin, end, list, &counts);
  };
  context.team.ParallelFor(ranges.Count(), std::ref(run));
  AddRangeStats(range_stats, ranges.Count(), context.team.NumThreads(), stats);
  output.Finish(out, stats);
}

}  // namespace powerinfer
