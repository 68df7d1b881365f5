#include "sparse/prefill_pairs.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "base/rounding.h"

namespace powerinfer {
namespace {

// Neurons marked by one thread at a time.
constexpr std::int64_t kMarkedNeurons = 1024;

/// is_needed of the neurons in [begin, end).
void MarkNeeded(const TokenPairs& pairs, std::int64_t begin, std::int64_t end,
                std::int32_t* is_needed) {
  std::fill(is_needed + begin, is_needed + end, 0);
  for (std::int64_t token = 0; token < pairs.num_tokens; ++token) {
    const std::int32_t* ids = pairs.Ids(token);
    const std::int32_t* last = ids + pairs.counts[token];
    for (ids = std::lower_bound(ids, last, begin); ids != last && *ids < end; ++ids) {
      is_needed[*ids] = 1;
    }
  }
}

}  // namespace

std::int64_t FindFiring(const KernelTable& kernels, const Activation& activation, const float* gate,
                        std::int64_t num_neurons, const NeuronIds* mask, std::int64_t token,
                        std::int32_t* ids) {
  if (mask != nullptr) {
    std::int64_t count = 0;
    VisitFires(activation, [&](const auto& fires) {
      for (const std::int32_t id : mask->Of(token)) {
        ids[count] = id;
        count += fires(gate[id]) ? 1 : 0;
      }
    });
    return count;
  }
  if (!activation.IsSparse()) {
    std::iota(ids, ids + num_neurons, 0);
    return num_neurons;
  }
  if (activation.IsCut()) {
    std::int64_t count = 0;
    VisitFires(activation, [&](const auto& fires) {
      for (std::int64_t id = 0; id < num_neurons; ++id) {
        ids[count] = static_cast<std::int32_t>(id);
        count += fires(gate[id]) ? 1 : 0;
      }
    });
    return count;
  }
  if (activation.kind == ActivationKind::kFatRelu) {
    return kernels.list_from(gate, num_neurons, activation.threshold, ids);
  }
  return kernels.list_above(gate, num_neurons, 0.0F, ids);
}

NeededRows FindNeeded(const OpContext& context, const TokenPairs& pairs) {
  auto* places = context.workspace.Get<std::int32_t>(Scratch::kNeuronLists, 2 * pairs.num_neurons);
  const auto mark = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t begin = chunk * kMarkedNeurons;
    MarkNeeded(pairs, begin, std::min(begin + kMarkedNeurons, pairs.num_neurons), places);
  };
  context.team.ParallelFor(DivideUp(pairs.num_neurons, kMarkedNeurons), std::ref(mark));
  std::int32_t* ids = places + pairs.num_neurons;
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < pairs.num_neurons; ++i) {
    const std::int32_t is_needed = places[i];
    ids[count] = static_cast<std::int32_t>(i);
    places[i] = count;
    count += is_needed;
  }
  return {{ids, static_cast<std::size_t>(count)}, places};
}

}  // namespace powerinfer
