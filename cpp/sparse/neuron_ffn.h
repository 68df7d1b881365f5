// A feed-forward block over chosen neurons, for a small batch: one pass over fixed ranges of
// neurons, each of which is chosen, computed and summed by one thread.
#pragma once

#include <cstdint>

#include "ops/op_context.h"
#include "sparse/ffn.h"
#include "sparse/neuron_list.h"
#include "sparse/neuron_source.h"

namespace powerinfer {

/// Some tokens and the choice of their neurons, shared by all ranges.
struct NeuronBatch {
  const OpContext& context;
  const FFNView& ffn;
  const ActivationRow* x;  ///< from PrepareActivations for the formats of gate and up
  std::int64_t num_tokens;
  const NeuronSource& source;

  /// Fills an empty list with the neurons of [begin, end) that fire and their activated values.
  /// scratch: as in NeuronSource.
  void Activate(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                FFNStats* stats) const;

 private:
  void KeepFiring(NeuronList* list) const;
};

/// Scratch memory of each thread, used for its ranges in turn.
class RangeScratch {
 public:
  RangeScratch(const OpContext& context, std::int64_t max_neurons, std::int64_t max_tokens);

  void* Scores(std::int32_t thread) const { return memory_ + thread * num_bytes_; }
  NeuronList EmptyList(std::int32_t thread) const {
    return {memory_ + thread * num_bytes_ + list_at_, max_neurons_, max_tokens_};
  }

 private:
  std::int64_t max_neurons_, max_tokens_, list_at_, num_bytes_;
  std::uint8_t* memory_;
};

/// sums.Row(t) = sum over t's entries of value * row of down, and num_terms[t] their number; the
/// sums of none are not written. Counts bytes and seconds of down.
void SumNeurons(const OpContext& context, const MatrixView& down, const NeuronList& list,
                std::int64_t* num_terms, RowsView<float> sums, FFNStats* stats);

/// values[t, i] = value of neuron begin + i for token t, 0 for those without an entry. All of the
/// list's neurons are in [begin, begin + values.columns).
void ScatterNeurons(const NeuronList& list, std::int64_t begin, RowsView<float> values);

/// Adds what ranges counted to stats. They count the seconds of one thread each; those of a call
/// are averaged over its threads.
void AddRangeStats(const FFNStats* ranges, std::int64_t count, std::int32_t num_threads,
                   FFNStats* stats);

/// out = down(activation(gate x, up x)) over the neurons of `source`, the others being zero; see
/// ffn.h. x: `num_tokens` rows from PrepareActivations for the formats of gate and up, at most
/// kMaxBatchTokens.
void RunChosenNeurons(const OpContext& context, const ActivationRow* x, std::int64_t num_tokens,
                      const FFNView& ffn, const NeuronSource& source, RowsView<float> out,
                      FFNStats* stats);

}  // namespace powerinfer
