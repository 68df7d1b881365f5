// One feed-forward block in one call, dense or over the neurons that fire ("Neuron-aware Operator").
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "base/views.h"
#include "ops/linear.h"
#include "ops/workspace.h"

namespace powerinfer {

/// With g = gate.x and u = up.x per neuron: silu(g)*u, gelu(g)*u (tanh approximation), relu(g)*u,
/// relu(g)*relu(u), (g if g >= threshold else 0)*u, relu(g)^2*u. Without gate the function of u.
/// The order is that of values.py's ActivationKind.
enum class ActivationKind : std::int32_t { kSilu, kGelu, kRelu, kDRelu, kFatRelu, kRelu2 };

/// Weights of one block; biases may be null. gate.data is null for an ungated block.
struct FFNView {
  MatrixView gate;  ///< [intermediate_size, hidden_size]
  MatrixView up;    ///< [intermediate_size, hidden_size]
  MatrixView down;  ///< [intermediate_size, hidden_size] if transposed, else the other way round
  const float* gate_bias = nullptr;  ///< f32[intermediate_size]
  const float* up_bias = nullptr;    ///< f32[intermediate_size]
  const float* down_bias = nullptr;  ///< f32[hidden_size]
  ActivationKind activation = ActivationKind::kSilu;
  float threshold = 0.0F;  ///< FatReLU's
  bool is_down_transposed = false;
  bool is_exact_sparse = false;  ///< skip neurons that do not fire; ignored for silu and gelu

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

/// One token's block over the neurons of `active_ids` (ascending) only; the others count as zero.
/// gate_values: f32[intermediate_size] with gate x + bias already there for the listed neurons (for
/// an ungated block: up x + bias), or null to compute it here. x comes from PrepareActivations and
/// covers the formats of gate and up. Needs a transposed down. out: f32[hidden_size].
void RunActiveNeurons(ThreadTeam& team, Workspace& workspace, const ActivationRow& x,
                      const FFNView& ffn, std::span<const std::int32_t> active_ids,
                      const float* gate_values, float* out, FFNStats* stats);

}  // namespace powerinfer
