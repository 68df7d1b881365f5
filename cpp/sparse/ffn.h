// One feed-forward block in one call, dense or over the neurons that fire ("Neuron-aware
// Operator").
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"
#include "sparse/activation.h"
#include "sparse/expert_filler.h"
#include "sparse/fired_bits.h"
#include "sparse/neuron_list.h"
#include "sparse/predictor.h"
#include "sparse/router.h"

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
  bool is_exact_sparse = false;  ///< skip neurons that do not fire, if the activation has any
  /// With data: a mixture of experts, whose matrices and biases are concatenated, all of one size.
  /// Expert e owns neurons [e * ExpertSize(), (e + 1) * ExpertSize()); down that is not transposed
  /// is [num_experts * hidden_size, ExpertSize()], its bias f32[num_experts * hidden_size]. Only
  /// RunExperts (experts.h) takes such a block.
  RouterView router;
  /// Fills the experts of a call before they are read; null: all can be read.
  const ExpertFiller* filler = nullptr;

  bool SkipsNeurons() const { return is_exact_sparse && activation.IsSparse(); }
  bool HasGate() const { return gate.data != nullptr; }
  std::int64_t HiddenSize() const { return up.columns; }
  std::int64_t IntermediateSize() const { return up.rows; }  ///< of all experts
  bool HasExperts() const { return router.matrix.data != nullptr; }
  std::int64_t NumExperts() const { return HasExperts() ? router.NumExperts() : 1; }
  std::int64_t ExpertSize() const { return IntermediateSize() / NumExperts(); }
  /// One expert as a block of its own.
  FFNView Expert(std::int64_t expert) const;

  /// The matrix that decides which neurons fire, and its bias.
  const MatrixView& DecidingMatrix() const { return HasGate() ? gate : up; }
  const float* DecidingBias() const { return HasGate() ? gate_bias : up_bias; }
};

/// Counts of a call, summed over tokens; a call adds to them. Python sees the same struct.
struct FFNStats {
  std::int64_t active = 0;  ///< neurons that fired; all computed ones if none is ever zero
  /// Neurons that the predictor let pass or the list named; without either, all.
  std::int64_t predicted = 0;
  std::int64_t total = 0;  ///< all neurons
  /// Neurons that fired for any token of a batch of at most kMaxBatchTokens decode rows, summed
  /// over batches; if none are skipped, all that were computed.
  std::int64_t united = 0;
  std::int64_t bytes_read = 0;       ///< weight bytes read by the block; a row counts once a batch
  std::int64_t predictor_bytes = 0;  ///< weight bytes read by the predictor
  std::int64_t down_bytes = 0;       ///< of bytes_read, gathered rows of down
  std::int64_t router_bytes = 0;     ///< of bytes_read, the router
  double predictor_s = 0.0;          ///< seconds of the predictor; see PredictorStats
  double down_s = 0.0;    ///< seconds of gathering rows of down, averaged over the threads
  double router_s = 0.0;  ///< seconds of choosing experts

  FFNStats& operator+=(const FFNStats& part);
};

/// Decode rows that share one pass over the neurons: the rows of all their active neurons are read
/// once, and each token computes its own.
inline constexpr std::int64_t kMaxBatchTokens = 32;
static_assert(kMaxBatchTokens <= kMaxListTokens);

// x and out are f32[num_tokens, hidden_size] and do not overlap; stats may be null. Bits of the
// result do not depend on the number of threads or on timing. NaN and infinity in x or the weights
// reach the output as NaN or infinity.

/// out = down(activation(gate x, up x)). Neurons that do not fire are skipped if the view says so;
/// in a prompt, by those tokens for which it pays. `fired`: for prompt rows only; no other bit
/// depends on it.
void RunFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
            RowsView<float> out, FFNStats* stats, const FiredBits& fired = {});

/// The block over the neurons of each token's list; the others count as zero. Listed neurons that
/// turn out not to fire are skipped.
void RunListedFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                  const NeuronIds& ids, RowsView<float> out, FFNStats* stats);

/// The block over the neurons that the predictor lets pass for its own input,
/// f32[num_tokens, hidden_size].
void RunPredictedFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                     const PredictorView& predictor, RowsView<const float> predictor_input,
                     RowsView<float> out, FFNStats* stats);

}  // namespace powerinfer
