#include "sparse/prefill_pairs.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "base/rounding.h"

namespace powerinfer {
namespace {

// Neurons counted by one thread at a time.
constexpr std::int64_t kCountedNeurons = 1024;

std::int64_t KeepFiring(const KernelTable& kernels, const Activation& activation, const float* gate,
                        std::int64_t num_neurons, std::int32_t* ids) {
  if (!activation.IsSparse()) {
    std::iota(ids, ids + num_neurons, 0);
    return num_neurons;
  }
  if (activation.kind == ActivationKind::kFatRelu) {
    return kernels.list_from(gate, num_neurons, activation.threshold, ids);
  }
  return kernels.list_above(gate, num_neurons, 0.0F, ids);
}

template <typename Fires>
std::int64_t KeepListed(const float* gate, std::span<const std::int32_t> listed, const Fires& fires,
                        std::int32_t* ids) {
  std::int64_t count = 0;
  for (const std::int32_t id : listed) {
    ids[count] = id;
    count += fires(gate[id]) ? 1 : 0;
  }
  return count;
}

/// num_firing of the neurons in [begin, end).
void CountTokens(const FiringPairs& pairs, std::int64_t begin, std::int64_t end) {
  std::fill(pairs.num_firing + begin, pairs.num_firing + end, 0);
  for (std::int64_t token = 0; token < pairs.num_tokens; ++token) {
    const std::int32_t* ids = pairs.Ids(token);
    const std::int32_t* last = ids + pairs.counts[token];
    for (ids = std::lower_bound(ids, last, begin); ids != last && *ids < end; ++ids) {
      ++pairs.num_firing[*ids];
    }
  }
}

FiringPairs Allocate(Workspace& workspace, std::int64_t num_tokens, std::int64_t num_neurons) {
  Workspace& lists = workspace.Nested();
  auto* arrays = lists.Get<std::int32_t>(Scratch::kNeuronLists, 4 * num_neurons);
  return {num_tokens,
          num_neurons,
          lists.Get<std::int32_t>(Scratch::kActiveIds, num_tokens * num_neurons),
          lists.Get<std::int64_t>(Scratch::kCounts, num_tokens),
          arrays,
          arrays + num_neurons};
}

}  // namespace

std::int64_t FiringPairs::Total() const {
  return std::accumulate(counts, counts + num_tokens, std::int64_t{0});
}

FiringPairs FindPairs(const OpContext& context, const Activation& activation,
                      RowsView<const float> gate, const NeuronIds* mask) {
  const FiringPairs pairs = Allocate(context.workspace, gate.rows, gate.columns);
  VisitFires(activation, [&](const auto& fires) {
    const auto find = [&](std::int64_t token, std::int32_t) {
      pairs.counts[token] =
          mask != nullptr ? KeepListed(gate.Row(token), mask->Of(token), fires, pairs.Ids(token))
                          : KeepFiring(context.kernels, activation, gate.Row(token), gate.columns,
                                       pairs.Ids(token));
    };
    context.team.ParallelFor(gate.rows, std::ref(find));
  });
  const auto count = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t begin = chunk * kCountedNeurons;
    CountTokens(pairs, begin, std::min(begin + kCountedNeurons, pairs.num_neurons));
  };
  context.team.ParallelFor(DivideUp(pairs.num_neurons, kCountedNeurons), std::ref(count));
  return pairs;
}

NeuronSplit SplitNeurons(const FiringPairs& pairs, const PairCost& cost) {
  const std::int64_t num_neurons = pairs.num_neurons;
  std::int32_t* places = pairs.split;
  std::int32_t* often = places + num_neurons;
  std::int32_t* rarely = often + num_neurons;
  const auto all_tokens = static_cast<double>(pairs.num_tokens);
  std::int32_t num_often = 0;
  std::int32_t num_rarely = 0;
  double sum = cost.token * all_tokens;
  for (std::int64_t i = 0; i < num_neurons; ++i) {
    if (pairs.num_firing[i] == 0) continue;
    const double listed = cost.pair * static_cast<double>(pairs.num_firing[i]);
    const bool is_often = listed >= all_tokens;
    places[i] = is_often ? num_often : -1 - num_rarely;
    (is_often ? often[num_often++] : rarely[num_rarely++]) = static_cast<std::int32_t>(i);
    sum += cost.row + std::min(listed, all_tokens);
  }
  return {{often, static_cast<std::size_t>(num_often)},
          {rarely, static_cast<std::size_t>(num_rarely)},
          places,
          sum / (static_cast<double>(num_neurons) * (cost.row + all_tokens))};
}

}  // namespace powerinfer
