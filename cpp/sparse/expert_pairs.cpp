#include "sparse/expert_pairs.h"

#include <algorithm>

namespace powerinfer {

ExpertPairs GroupPairs(const OpContext& context, const std::int32_t* ids, const float* weights,
                       std::int64_t num_tokens, std::int64_t num_used, std::int64_t num_experts) {
  const std::int64_t num_pairs = num_tokens * num_used;
  auto* next = context.workspace.Get<std::int32_t>(Scratch::kExpertPairs,
                                                   3 * num_experts + 1 + 3 * num_pairs);
  auto* place_of = next;  // of each expert: first the number of its tokens, then its place
  std::int32_t* experts = place_of + num_experts;
  std::int32_t* firsts = experts + num_experts;
  std::int32_t* tokens = firsts + num_experts + 1;
  std::int32_t* places = tokens + num_pairs;
  std::int32_t* pairs = places + num_pairs;
  auto* pair_weights = context.workspace.Get<float>(Scratch::kPairWeights, num_pairs);
  std::fill_n(place_of, num_experts, 0);
  for (std::int64_t i = 0; i < num_pairs; ++i) ++place_of[ids[i]];
  std::int32_t num_chosen = 0;
  firsts[0] = 0;
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    if (place_of[expert] == 0) continue;
    experts[num_chosen] = expert;
    firsts[num_chosen + 1] = firsts[num_chosen] + place_of[expert];
    place_of[expert] = num_chosen++;
  }
  // Filling an expert moves its first pair to the next one's, so they are moved back in the end.
  for (std::int64_t i = 0; i < num_pairs; ++i) {
    const std::int32_t place = place_of[ids[i]];
    const std::int32_t pair = firsts[place]++;
    tokens[pair] = static_cast<std::int32_t>(i / num_used);
    places[pair] = place;
    pair_weights[pair] = weights[i];
    pairs[i] = pair;
  }
  std::copy_backward(firsts, firsts + num_chosen, firsts + num_chosen + 1);
  firsts[0] = 0;
  return {num_tokens, num_used, num_chosen, experts, firsts, tokens, places, pairs, pair_weights};
}

}  // namespace powerinfer
