#include "sparse/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/exp.h"
#include "base/row_chunks.h"

namespace powerinfer {
namespace {

// The smallest normal number of F16, as the families with sigmoid routers have it.
constexpr float kSmallestSigmoidSum = 0x1p-14F;

/// NaN becomes -infinity; returns whether there was any.
bool ReplaceNaN(float* logits, std::int64_t count) {
  bool has_nan = false;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_nan = std::isnan(logits[i]);
    has_nan |= is_nan;
    if (is_nan) logits[i] = -std::numeric_limits<float>::infinity();
  }
  return has_nan;
}

/// The ids of the num_used largest scores, ascending.
template <typename Score>
void ChooseLargest(const Score& score, std::int64_t num_experts, std::int64_t num_used,
                   std::int32_t* ids) {
  std::int64_t count = 0;
  // By falling scores meanwhile; later ids do not displace equal ones.
  for (std::int32_t id = 0; id < num_experts; ++id) {
    const float own = score(id);
    if (count == num_used && !(own > score(ids[count - 1]))) continue;
    std::int64_t place = count < num_used ? count++ : count - 1;
    for (; place > 0 && own > score(ids[place - 1]); --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
  std::sort(ids, ids + num_used);
}

float Sigmoid(float x) { return 1.0F / (1.0F + FastExp(-x)); }

void Choose(const RouterView& router, const float* logits, std::int32_t* ids) {
  const float* bias = router.selection_bias;
  if (bias == nullptr) {
    ChooseLargest([=](std::int32_t id) { return logits[id]; }, router.NumExperts(), router.num_used,
                  ids);
  } else {
    // What was NaN stays the smallest.
    const auto score = [=](std::int32_t id) {
      return std::isinf(logits[id]) ? logits[id] : Sigmoid(logits[id]) + bias[id];
    };
    ChooseLargest(score, router.NumExperts(), router.num_used, ids);
  }
}

/// weights[i] = exp(logit of ids[i]) as a share of the sum over the chosen, or over all experts.
void Softmax(const RouterView& router, const float* logits, const std::int32_t* ids,
             float* weights) {
  const std::span<const std::int32_t> chosen(ids, static_cast<std::size_t>(router.num_used));
  // The largest of all is among the chosen.
  float maximum = logits[ids[0]];
  for (const std::int32_t id : chosen) maximum = std::max(maximum, logits[id]);
  float sum = 0.0F;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    weights[i] = FastExp(logits[chosen[i]] - maximum);
    sum += weights[i];
  }
  if (!router.is_normalized) {
    sum = 0.0F;
    for (std::int64_t i = 0; i < router.NumExperts(); ++i) sum += FastExp(logits[i] - maximum);
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) weights[i] /= sum;
}

void Sigmoids(const RouterView& router, const float* logits, const std::int32_t* ids,
              float* weights) {
  float sum = 0.0F;
  for (std::int64_t i = 0; i < router.num_used; ++i) {
    weights[i] = Sigmoid(logits[ids[i]]);
    sum += weights[i];
  }
  if (!router.is_normalized) return;
  sum = std::max(sum, kSmallestSigmoidSum);
  for (std::int64_t i = 0; i < router.num_used; ++i) weights[i] /= sum;
}

void RouteToken(const RouterView& router, float* logits, std::int32_t* ids, float* weights) {
  const bool has_nan = ReplaceNaN(logits, router.NumExperts());
  Choose(router, logits, ids);
  if (has_nan) {
    std::fill_n(weights, router.num_used, std::numeric_limits<float>::quiet_NaN());
  } else if (router.rule == RouterRule::kSoftmax) {
    Softmax(router, logits, ids, weights);
  } else {
    Sigmoids(router, logits, ids, weights);
  }
  for (std::int64_t i = 0; i < router.num_used; ++i) weights[i] *= router.scale;
  if (router.expert_scale == nullptr) return;
  for (std::int64_t i = 0; i < router.num_used; ++i) weights[i] *= router.expert_scale[ids[i]];
}

}  // namespace

void Route(const OpContext& context, RowsView<const float> x, const RouterView& router,
           std::int32_t* ids, float* weights) {
  const std::int64_t num_experts = router.NumExperts();
  const RowsView<float> logits =
      Rows(context.workspace.Get<float>(Scratch::kRouterLogits, x.rows * num_experts), x.rows,
           num_experts);
  const LinearItem item{router.matrix, router.bias, logits};
  Linear(context, x, std::span(&item, 1));
  ForEachRow(context.team, x.rows, num_experts * 4, [&](std::int64_t token) {
    RouteToken(router, logits.Row(token), ids + token * router.num_used,
               weights + token * router.num_used);
  });
}

}  // namespace powerinfer
