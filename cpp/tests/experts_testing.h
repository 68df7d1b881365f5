// A random mixture of experts and its result in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "sparse/experts.h"
#include "sparse/router.h"
#include "tests/ffn_testing.h"

namespace powerinfer::testing {

struct ExpertsOptions {
  FFNOptions ffn;
  RouterRule rule = RouterRule::kSoftmax;
  std::int64_t num_used = 2;
  bool is_normalized = true;
  float scale = 1.0F;
  std::int64_t router_size = 0;  ///< width of the router's input; 0: hidden_size

  ExpertsOptions() {
    ffn.num_experts = 5;
    ffn.intermediate_size = 150;
  }
  std::int64_t RouterSize() const { return router_size != 0 ? router_size : ffn.hidden_size; }
  std::string Name() const {
    return ffn.Name() + (rule == RouterRule::kSoftmax ? " softmax " : " sigmoid ") +
           std::to_string(num_used) + " of " + std::to_string(ffn.num_experts) +
           (is_normalized ? " normalized" : "") + " times " + std::to_string(scale) + " by " +
           std::to_string(RouterSize());
  }
};

/// The experts of a token, ascending, with weights.
struct Routes {
  std::vector<std::int64_t> ids;
  std::vector<double> weights;
};

struct ExpertsBlock {
  FFNBlock block;
  TestMatrix router;
  std::vector<float> router_bias;
  FFNView view;

  ExpertsBlock(const ExpertsOptions& o, Random& random)
      : block(o.ffn, random),
        router(Format::kF32, o.ffn.num_experts, o.RouterSize(), random),
        router_bias(RandomFloats(o.ffn.num_experts, random)) {
    block.view.router = {router.view, router_bias.data(), o.rule, o.num_used, o.is_normalized};
    block.view.router.scale = o.scale;
    view = block.view;
  }
};

/// Weights in double precision, for experts in the order of falling logits.
inline std::vector<double> RouteWeights(const RouterView& router, const std::vector<double>& logits,
                                        const std::vector<std::int64_t>& order) {
  std::vector<double> weights;
  const bool is_softmax = router.rule == RouterRule::kSoftmax;
  for (const std::int64_t id : order) {
    const double logit = logits[static_cast<std::size_t>(id)];
    weights.push_back(is_softmax ? std::exp(logit) : 1.0 / (1.0 + std::exp(-logit)));
  }
  const auto used = weights.begin() + router.num_used;
  double sum = 1.0;
  if (router.is_normalized) sum = std::accumulate(weights.begin(), used, 0.0);
  if (!router.is_normalized && is_softmax)
    sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  weights.erase(used, weights.end());
  for (double& weight : weights) weight *= router.scale / sum;
  return weights;
}

inline Routes ReferenceRoutes(const ExpertsBlock& block, const float* x) {
  const RouterView& router = block.view.router;
  std::vector<double> logits;
  for (std::int64_t e = 0; e < router.NumExperts(); ++e) {
    logits.push_back(Row(block.router, e, x, block.router_bias.data()));
  }
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int64_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logit(a) > logit(b); });
  const std::vector<double> weights = RouteWeights(router, logits, order);
  Routes routes;
  order.resize(static_cast<std::size_t>(router.num_used));
  routes.ids = order;
  std::ranges::sort(routes.ids);
  for (const std::int64_t id : routes.ids) {
    const auto place = std::ranges::find(order, id) - order.begin();
    routes.weights.push_back(weights[static_cast<std::size_t>(place)]);
  }
  return routes;
}

inline FFNResult ExpertsReference(const ExpertsBlock& block, const float* x, const float* routed,
                                  const IsListed& is_listed = nullptr) {
  const Routes routes = ReferenceRoutes(block, routed);
  FFNResult result;
  result.out.assign(static_cast<std::size_t>(block.view.HiddenSize()), 0.0);
  result.magnitude = result.out;
  for (std::size_t i = 0; i < routes.ids.size(); ++i) {
    const FFNResult part = Reference(block.block, x, is_listed, routes.ids[i]);
    result.active += part.active;
    for (std::size_t c = 0; c < result.out.size(); ++c) {
      result.out[c] += routes.weights[i] * part.out[c];
      result.magnitude[c] += std::max(routes.weights[i], 0.05) * part.magnitude[c];
    }
  }
  return result;
}

}  // namespace powerinfer::testing
