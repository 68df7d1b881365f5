// One feed-forward block in one call, dense or over the neurons that fire ("Neuron-aware
// Operator").
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "base/views.h"
#include "ops/linear.h"
#include "ops/workspace.h"
#include "sparse/activation.h"

namespace powerinfer {

/// Weights of one block; biases may be null. gate.data is null for an ungated block.
struct FFNView {
  MatrixView gate;  ///< [intermediate_size, hidden_size]
  MatrixView up;    ///< [intermediate_size, hidden_size]
  MatrixView down;  ///< [intermediate_size, hidden_size] if transposed, else the other way round
  const float* gate_bias = nullptr;  ///< f32[intermediate_size]
  const float* up_bias = nullptr;    ///< f32[intermediate_size]
  const float* down_bias = nullptr;  ///< f32[hidden_size]
  Activation activation;
  bool is_down_transposed = false;
  bool is_exact_sparse = false;  ///< skip neurons that do not fire; ignored for silu and gelu

  bool SkipsNeurons() const { return is_exact_sparse && activation.IsSparse(); }
  bool HasGate() const { return gate.data != nullptr; }
  std::int64_t HiddenSize() const { return up.columns; }
  std::int64_t IntermediateSize() const { return up.rows; }
};

/// What RunFFN did; it adds to these.
struct FFNStats {
  std::int64_t active = 0;      ///< neurons that fired (all of them for silu and gelu), over tokens
  std::int64_t total = 0;       ///< neurons there were, over tokens
  std::int64_t bytes_read = 0;  ///< weight bytes read
};

/// out = down(activation(gate x, up x)). x and out: f32[num_tokens, hidden_size], not overlapping.
/// stats may be null. Bits of the result do not depend on the number of threads or on timing.
/// NaN and infinity in x or the weights reach the output as NaN or infinity.
void RunFFN(ThreadTeam& team, Workspace& workspace, RowsView<const float> x, const FFNView& ffn,
            RowsView<float> out, FFNStats* stats);

/// What is known about the neurons of a list before RunActiveNeurons.
struct ActiveNeurons {
  std::span<const std::int32_t> ids;  ///< ascending
  /// f32[intermediate_size] with gate x + bias (ungated block: up x + bias) there for the listed
  /// neurons, or null to compute it.
  const float* gate_values = nullptr;
};

/// One token's block over listed neurons only; the others count as zero. Listed neurons that turn
/// out not to fire are skipped. x comes from PrepareActivations for the formats of gate and up.
/// Needs a transposed down. out: f32[hidden_size]. For whoever knows the neurons: the exact path
/// knows them from the gate, a predictor from a guess.
void RunActiveNeurons(ThreadTeam& team, Workspace& workspace, const ActivationRow& x,
                      const FFNView& ffn, const ActiveNeurons& neurons, float* out,
                      FFNStats* stats);

}  // namespace powerinfer
