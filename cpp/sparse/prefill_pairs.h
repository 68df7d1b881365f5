// The pairs of token and neuron that are computed one by one in a block of tokens.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/op_context.h"
#include "sparse/activation.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// Pairs by token: counts[t] ids of row t, ascending, each with a value. Tokens that are computed
/// in another way have none.
struct TokenPairs {
  std::int64_t num_tokens = 0;
  std::int64_t num_neurons = 0;
  std::int32_t* ids = nullptr;     ///< i32[num_tokens, num_neurons]
  float* values = nullptr;         ///< f32[num_tokens, num_neurons]
  std::int64_t* counts = nullptr;  ///< i64[num_tokens]

  std::int32_t* Ids(std::int64_t token) const { return ids + token * num_neurons; }
  float* Values(std::int64_t token) const { return values + token * num_neurons; }
};

/// The token's neurons that fire on gate f32[num_neurons], of those in `mask` alone if that is not
/// null; returns how many.
std::int64_t FindFiring(const KernelTable& kernels, const Activation& activation, const float* gate,
                        std::int64_t num_neurons, const NeuronIds* mask, std::int64_t token,
                        std::int32_t* ids);

/// Keeps the token's pairs with passes(value).
template <typename Passes>
void KeepPairs(const TokenPairs& pairs, std::int64_t token, const Passes& passes) {
  std::int32_t* ids = pairs.Ids(token);
  float* values = pairs.Values(token);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < pairs.counts[token]; ++i) {
    const float value = values[i];
    ids[count] = ids[i];
    values[count] = value;
    count += passes(value) ? 1 : 0;
  }
  pairs.counts[token] = count;
}

/// The neurons that any token has a pair with.
struct NeededRows {
  std::span<const std::int32_t> ids;     ///< ascending
  const std::int32_t* places = nullptr;  ///< i32[num_neurons]: place in ids, for those in it

  std::int64_t Count() const { return static_cast<std::int64_t>(ids.size()); }
};

/// Valid until the next call with this workspace.
NeededRows FindNeeded(const OpContext& context, const TokenPairs& pairs);

}  // namespace powerinfer
