// The pairs of token and neuron that count in a block of tokens, and which neurons have so many
// that a product over all tokens is faster than one over their pairs.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/op_context.h"
#include "sparse/activation.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// The pairs whose neuron fires, by token. In context.workspace.Nested().
struct FiringPairs {
  std::int64_t num_tokens = 0;
  std::int64_t num_neurons = 0;
  std::int32_t* ids = nullptr;     ///< i32[num_tokens, num_neurons]: counts[t] of row t, ascending
  std::int64_t* counts = nullptr;  ///< i64[num_tokens]
  std::int32_t* num_firing = nullptr;  ///< i32[num_neurons]: tokens that each neuron fires for
  std::int32_t* split = nullptr;       ///< i32[3, num_neurons]: room for SplitNeurons

  std::int32_t* Ids(std::int64_t token) const { return ids + token * num_neurons; }
  std::int64_t Total() const;
};

/// The pairs that fire on their values in `gate`, f32[num_tokens, num_neurons]; of those in `mask`
/// alone unless it is null.
FiringPairs FindPairs(const OpContext& context, const Activation& activation,
                      RowsView<const float> gate, const NeuronIds* mask);

/// The neurons that fire at all, by what their pairs cost. In the memory of the pairs.
struct NeuronSplit {
  std::span<const std::int32_t> often;   ///< ascending; multiplied with all tokens
  std::span<const std::int32_t> rarely;  ///< ascending; multiplied with the tokens they fire for
  /// i32[num_neurons]: place in `often`, or -1 - place in `rarely`; undefined for other neurons.
  const std::int32_t* places = nullptr;
  /// Expected time over that of the whole matrices.
  double cost = 0.0;

  std::int64_t NumRarely() const { return static_cast<std::int64_t>(rarely.size()); }
};

/// How long a product takes, in units of one number of one row for one token of many.
struct PairCost {
  double pair = 1.0;   ///< a number of one row for one token of a list
  double row = 0.0;    ///< reading and decoding a number of a row
  double token = 0.0;  ///< lists and copies of one token
};

NeuronSplit SplitNeurons(const FiringPairs& pairs, const PairCost& cost);

}  // namespace powerinfer
