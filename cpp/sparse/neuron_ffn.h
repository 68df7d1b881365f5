// A feed-forward block over chosen neurons, for a small batch: one pass over fixed ranges of
// neurons, each of which is chosen, computed and summed by one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "ops/op_context.h"
#include "sparse/ffn.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// Chooses the neurons of [begin, end).
struct NeuronSource {
  /// Fills an empty list. scratch: 4 bytes per pair of neuron and token. Counts bytes and seconds
  /// of the thread.
  std::function<void(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                     FFNStats* stats)>
      fill;
  /// Whether the list's values are the deciding matrix's products already, and all fire.
  bool has_values = false;
};

/// out = down(activation(gate x, up x)) over the neurons of `source`, the others being zero; see
/// ffn.h. x: `num_tokens` rows from PrepareActivations for the formats of gate and up, at most
/// kMaxBatchTokens.
void RunChosenNeurons(const OpContext& context, const ActivationRow* x, std::int64_t num_tokens,
                      const FFNView& ffn, const NeuronSource& source, RowsView<float> out,
                      FFNStats* stats);

}  // namespace powerinfer
