// The feed-forward block for prompt rows: after the deciding matrix, each token computes only its
// neurons that fire, if that is faster.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "sparse/ffn.h"
#include "sparse/fired_bits.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// The largest shares of its neurons with which a token skips the others. Constants of the kernels
/// and the formats: whether a token skips must depend on the token alone.
struct SkipShares {
  double listed = 0.0;  ///< listed neurons, of which alone the deciding matrix is computed
  double firing = 0.0;  ///< firing neurons, of which alone up and down are computed
};

SkipShares SharesFor(const KernelTable& kernels, const FFNView& ffn);

/// out = down(activation(gate x, up x)) over the pairs of token and neuron that fire, and that
/// `mask` lists unless it is null; the others count as zero whatever their values are. x and out:
/// f32[num_tokens, hidden_size], not overlapping. For prompt rows.
///
/// A token with few listed neurons computes the deciding matrix of these alone, any other of all. A
/// token of which few fire then computes up and down of these alone (a down that is not transposed:
/// of all), any other of all. Rows of weights are read once for many tokens, but a token's bits
/// depend neither on the others nor on how many there are, nor on the number of threads, nor on
/// whether `fired` is wanted.
void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats,
                   const FiredBits& fired = {});

/// With given shares, for tests and benchmarks.
void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats,
                   const SkipShares& shares, const FiredBits& fired = {});

}  // namespace powerinfer
