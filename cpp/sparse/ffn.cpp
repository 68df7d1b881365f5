#include "sparse/ffn.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "base/rounding.h"
#include "base/row_chunks.h"
#include "ops/blocked_product.h"
#include "sparse/neuron_ffn.h"
#include "sparse/neuron_source.h"
#include "sparse/neuron_sums.h"
#include "sparse/prefill.h"

namespace powerinfer {
namespace {

// Values activated by one thread at a time.
constexpr std::int64_t kActivationChunk = 8 * 1024;

std::array<Format, 2> InputFormats(const FFNView& ffn) {
  return {ffn.DecidingMatrix().format, ffn.up.format};
}

/// Activates gate (with up unless it is null) in place and counts neurons that fire.
std::int64_t ActivateRows(const OpContext& context, const Activation& activation,
                          RowsView<float> gate, const float* up) {
  const std::int64_t size = gate.rows * gate.columns;
  const std::int64_t num_chunks = DivideUp(size, kActivationChunk);
  auto* counts = context.workspace.Get<std::int64_t>(Scratch::kCounts, num_chunks);
  const auto run = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t first = chunk * kActivationChunk;
    counts[chunk] = Activate(context.kernels, activation, std::min(kActivationChunk, size - first),
                             gate.data + first, up != nullptr ? up + first : nullptr);
  };
  context.team.ParallelFor(num_chunks, std::ref(run));
  return std::accumulate(counts, counts + num_chunks, std::int64_t{0});
}

/// gate and up for all neurons and tokens, activated: f32[num_tokens, intermediate_size].
RowsView<float> AllNeurons(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                           FFNStats* stats) {
  const std::int64_t size = ffn.IntermediateSize();
  const RowsView<float> values =
      Rows(context.workspace.Get<float>(Scratch::kGate, x.rows * size), x.rows, size);
  float* up = ffn.HasGate() ? context.workspace.Get<float>(Scratch::kUp, x.rows * size) : nullptr;
  std::array<LinearItem, 2> items = {
      LinearItem{ffn.DecidingMatrix(), ffn.DecidingBias(), values},
      LinearItem{ffn.up, ffn.up_bias, Rows(up, x.rows, size)},
  };
  Linear(context, x, std::span(items.data(), ffn.HasGate() ? 2U : 1U));
  stats->active += ActivateRows(context, ffn.activation, values, up);
  stats->predicted += x.rows * size;
  stats->united += DivideUp(x.rows, kMaxBatchTokens) * size;
  stats->bytes_read += ffn.up.NumBytes() + (ffn.HasGate() ? ffn.gate.NumBytes() : 0);
  return values;
}

/// Transposed down over all neurons for few tokens: every row is read once and added to all tokens.
void AddAllRows(const OpContext& context, RowsView<const float> values, const FFNView& ffn,
                RowsView<float> out) {
  const MatrixView& down = ffn.down;
  const NeuronRanges ranges(down.rows);
  const std::int64_t rows = ranges.Count() * values.rows;
  const RangeSums sums{context.workspace.Get<float>(Scratch::kPartials, rows * down.columns),
                       context.workspace.Get<std::int64_t>(Scratch::kCounts, rows), ranges.Count(),
                       values.rows, down.columns};
  const std::int64_t list_bytes = NeuronList::NumBytes(ranges.MaxSize(), values.rows);
  auto* lists = context.workspace.Get<std::uint8_t>(Scratch::kNeuronLists,
                                                    context.team.NumThreads() * list_bytes);
  const auto run = [&](std::int64_t range, std::int32_t thread) {
    const RowsView<float> own = Rows(sums.Row(range, 0), values.rows, down.columns);
    std::fill_n(own.data, values.rows * down.columns, 0.0F);
    std::fill_n(&sums.NumTerms(range, 0), values.rows, ranges.Size(range));
    NeuronList list(lists + thread * list_bytes, ranges.MaxSize(), values.rows);
    const std::int64_t begin = ranges.Begin(range);
    list.AppendPassing(begin, ranges.Size(range), values.data + begin, values.stride, values.rows,
                       [](float) { return true; });
    AddNeurons(context, down, list, own);
  };
  context.team.ParallelFor(ranges.Count(), std::ref(run));
  AddRanges(context.team, sums, ffn.down_bias, out);
}

void MultiplyDown(const OpContext& context, RowsView<const float> values, const FFNView& ffn,
                  RowsView<float> out, FFNStats* stats) {
  stats->bytes_read += ffn.down.NumBytes();
  if (!ffn.is_down_transposed) {
    const LinearItem item{ffn.down, ffn.down_bias, out};
    Linear(context, values, std::span(&item, 1));
  } else if (context.rows == RowKind::kPrompt) {
    BlockedTransposedLinear(context, values, ffn.down, ffn.down_bias, out);
  } else {
    for (std::int64_t first = 0; first < values.rows; first += kMaxBatchTokens) {
      const std::int64_t count = std::min(kMaxBatchTokens, values.rows - first);
      AddAllRows(context, values.Some(first, count), ffn, out.Some(first, count));
    }
  }
}

/// Calls body(first, count, stats) for pieces of at most kMaxBatchTokens tokens.
template <typename Body>
void ForBatches(std::int64_t num_tokens, const FFNView& ffn, FFNStats* stats, const Body& body) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  stats->total += num_tokens * ffn.IntermediateSize();
  for (std::int64_t first = 0; first < num_tokens; first += kMaxBatchTokens) {
    body(first, std::min(kMaxBatchTokens, num_tokens - first), stats);
  }
}

/// Predicts for all tokens, then computes what passed.
void RunPredictedPrefill(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                         const PredictorView& predictor, RowsView<const float> predictor_input,
                         RowsView<float> out, FFNStats* stats) {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ids;
  PredictorStats sums;
  PredictNeurons(context, predictor_input, predictor, &offsets, &ids, &sums);
  const NeuronIds listed{offsets.data(), ids.data(), x.rows};
  RunPrefillFFN(context, x, ffn, &listed, out, stats);
  if (stats == nullptr) return;
  stats->predictor_bytes += sums.bytes_read;
  stats->predictor_s += sums.seconds;
}

}  // namespace

FFNView FFNView::Expert(std::int64_t expert) const {
  const std::int64_t count = NumExperts();
  const std::int64_t first = expert * ExpertSize();
  FFNView own = *this;
  own.gate = gate.Part(expert, count);
  own.up = up.Part(expert, count);
  own.down = down.Part(expert, count);
  if (gate_bias != nullptr) own.gate_bias = gate_bias + first;
  if (up_bias != nullptr) own.up_bias = up_bias + first;
  if (down_bias != nullptr) own.down_bias = down_bias + expert * HiddenSize();
  own.router = {};
  own.filler = nullptr;
  return own;
}

FFNStats& FFNStats::operator+=(const FFNStats& part) {
  active += part.active;
  predicted += part.predicted;
  total += part.total;
  united += part.united;
  bytes_read += part.bytes_read;
  predictor_bytes += part.predictor_bytes;
  down_bytes += part.down_bytes;
  router_bytes += part.router_bytes;
  predictor_s += part.predictor_s;
  down_s += part.down_s;
  router_s += part.router_s;
  return *this;
}

void RunFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
            RowsView<float> out, FFNStats* stats, const FiredBits& fired) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  if (x.rows == 0) return;
  if (!ffn.SkipsNeurons()) {
    stats->total += x.rows * ffn.IntermediateSize();
    const RowsView<float> values = AllNeurons(context, x, ffn, stats);
    if (fired.IsWanted()) {
      ForEachRow(context.team, values.rows, values.columns,
                 [&](std::int64_t token) { fired.Set(token, values.Row(token), values.columns); });
    }
    MultiplyDown(context, ReadOnly(values), ffn, out, stats);
    return;
  }
  if (context.rows == RowKind::kPrompt) {
    RunPrefillFFN(context, x, ffn, nullptr, out, stats, fired);
    return;
  }
  ForBatches(x.rows, ffn, stats, [&](std::int64_t first, std::int64_t count, FFNStats* sums) {
    const ActivationRow* rows =
        PrepareActivations(context, x.Some(first, count), InputFormats(ffn));
    RunChosenNeurons(context, rows, count, ffn, FiringNeurons(context, ffn, rows, count),
                     out.Some(first, count), sums);
  });
}

void RunListedFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                  const NeuronIds& ids, RowsView<float> out, FFNStats* stats) {
  if (context.rows == RowKind::kPrompt) {
    RunPrefillFFN(context, x, ffn, &ids, out, stats);
    return;
  }
  ForBatches(x.rows, ffn, stats, [&](std::int64_t first, std::int64_t count, FFNStats* sums) {
    const ActivationRow* rows =
        PrepareActivations(context, x.Some(first, count), InputFormats(ffn));
    RunChosenNeurons(context, rows, count, ffn, ListedNeurons(ids.Tokens(first, count)),
                     out.Some(first, count), sums);
  });
}

void RunPredictedFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                     const PredictorView& predictor, RowsView<const float> predictor_input,
                     RowsView<float> out, FFNStats* stats) {
  if (context.rows == RowKind::kPrompt) {
    RunPredictedPrefill(context, x, ffn, predictor, predictor_input, out, stats);
    return;
  }
  ForBatches(x.rows, ffn, stats, [&](std::int64_t first, std::int64_t count, FFNStats* sums) {
    PredictorStats hidden;
    const PreparedPredictor prepared(context, predictor_input.Some(first, count), predictor,
                                     &hidden);
    sums->predictor_bytes += hidden.bytes_read;
    sums->predictor_s += hidden.seconds;
    const ActivationRow* rows =
        PrepareActivations(context, x.Some(first, count), InputFormats(ffn));
    RunChosenNeurons(context, rows, count, ffn, PredictedNeurons(prepared), out.Some(first, count),
                     sums);
  });
}

}  // namespace powerinfer
