// The tokens that each expert computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/op_context.h"
#include "ops/workspace.h"

namespace powerinfer {

/// The experts that some tokens chose, ascending, each with the tokens that chose it, ascending:
/// pairs, expert by expert. Lies in the workspace until the next GroupPairs.
struct ExpertPairs {
  std::int64_t num_tokens = 0;
  std::int64_t num_used = 0;
  std::int64_t num_chosen = 0;
  const std::int32_t* experts = nullptr;  ///< i32[num_chosen]
  const std::int32_t* firsts = nullptr;   ///< i32[num_chosen + 1]: an expert's first pair
  const std::int32_t* tokens = nullptr;   ///< i32[num_pairs]
  const std::int32_t* places = nullptr;   ///< i32[num_pairs]: place of its expert in `experts`
  const std::int32_t* pairs = nullptr;    ///< i32[num_tokens, num_used], a token's by expert
  const float* weights = nullptr;         ///< f32[num_pairs]

  std::int64_t NumPairs() const { return num_tokens * num_used; }
  std::int64_t First(std::int64_t place) const { return firsts[place]; }
  std::int64_t Count(std::int64_t place) const { return firsts[place + 1] - firsts[place]; }
  std::span<const std::int32_t> Experts() const {
    return {experts, static_cast<std::size_t>(num_chosen)};
  }
  /// The pairs of a token, experts ascending.
  std::span<const std::int32_t> Of(std::int64_t token) const {
    return {pairs + token * num_used, static_cast<std::size_t>(num_used)};
  }
};

/// Groups what Route gave for num_tokens tokens.
ExpertPairs GroupPairs(const OpContext& context, const std::int32_t* ids, const float* weights,
                       std::int64_t num_tokens, std::int64_t num_used, std::int64_t num_experts);

}  // namespace powerinfer
