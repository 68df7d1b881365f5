// Sums of scaled neuron rows (a transposed down projection) in an order that no thread can change.
#pragma once

#include <cstdint>

#include "base/thread_team.h"

namespace powerinfer {

/// Neurons [0, num_neurons) of a list cut into groups of equal length. Each group is summed by one
/// thread into its own vector; the vectors are then added in the order of the groups. The cut
/// depends on the number of neurons only, so results do too.
struct NeuronGroups {
  std::int64_t num_neurons;
  std::int64_t num_groups;

  explicit NeuronGroups(std::int64_t neurons);
  std::int64_t Begin(std::int64_t group) const { return num_neurons * group / num_groups; }
  std::int64_t End(std::int64_t group) const { return Begin(group + 1); }
};

/// out[c] = bias[c] + sum over g of partials[g * stride + c]; bias may be null. Parallel over
/// columns.
void AddPartials(ThreadTeam& team, const float* partials, std::int64_t num_groups,
                 std::int64_t stride, std::int64_t columns, const float* bias, float* out);

}  // namespace powerinfer
