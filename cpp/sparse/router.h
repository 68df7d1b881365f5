// The router of a mixture of experts: it chooses the experts of a token and their weights.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// The rule that turns logits into the weights of the chosen experts. The order is that of
/// values.py's RouterRule.
enum class RouterRule : std::int32_t { kSoftmax, kSigmoid };

/// Chooses the experts with the num_used largest scores; of equal ones those with lower ids.
struct RouterView {
  MatrixView matrix;            ///< [num_experts, columns]; columns need not be those of experts
  const float* bias = nullptr;  ///< f32[num_experts] or null
  RouterRule rule = RouterRule::kSoftmax;
  std::int64_t num_used = 0;
  /// The weights of the chosen are divided by their sum, a sum of sigmoids by at least 6.1e-5.
  bool is_normalized = false;
  /// Null: scores are logits. Else f32[num_experts]: they are sigmoids of logits plus this.
  const float* selection_bias = nullptr;
  float scale = 1.0F;  ///< factor of the weights, before those of single experts
  /// f32[num_experts], multiplied with the weights of the chosen at the end; null: none.
  const float* expert_scale = nullptr;

  std::int64_t NumExperts() const { return matrix.rows; }
};

/// ids: i32[num_tokens, num_used], ascending for each token; weights: f32[num_tokens, num_used], in
/// the order of the ids. x: f32[num_tokens, columns]. A logit that is NaN counts as -infinity,
/// but makes all weights of its token NaN: the output must show it. A token's results do not
/// depend on the others.
void Route(const OpContext& context, RowsView<const float> x, const RouterView& router,
           std::int32_t* ids, float* weights);

}  // namespace powerinfer
