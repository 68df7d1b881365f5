#include "sparse/neuron_sums.h"

#include <algorithm>
#include <functional>

namespace powerinfer {
namespace {

// More groups balance more threads, but each costs one vector written and read: at 7B width and a
// tenth of the neurons firing, 32 groups of some 34 rows move a tenth of the bytes of the rows.
constexpr std::int64_t kMaxGroups = 32;
constexpr std::int64_t kMinGroupNeurons = 16;

constexpr std::int64_t kChunkColumns = 512;
// Below this many partial numbers waking the team costs more than adding alone.
constexpr std::int64_t kParallelSize = 16 * 1024;

void AddColumns(const float* partials, std::int64_t num_groups, std::int64_t stride,
                std::int64_t count, const float* bias, float* out) {
  if (bias != nullptr) {
    std::copy_n(bias, count, out);
  } else {
    std::fill_n(out, count, 0.0F);
  }
  for (std::int64_t group = 0; group < num_groups; ++group) {
    const float* partial = partials + group * stride;
    for (std::int64_t i = 0; i < count; ++i) out[i] += partial[i];
  }
}

}  // namespace

NeuronGroups::NeuronGroups(std::int64_t neurons)
    : num_neurons(neurons),
      num_groups(std::clamp<std::int64_t>(neurons / kMinGroupNeurons, 1, kMaxGroups)) {}

void AddPartials(ThreadTeam& team, const float* partials, std::int64_t num_groups,
                 std::int64_t stride, std::int64_t columns, const float* bias, float* out) {
  const auto add = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t first = chunk * kChunkColumns;
    AddColumns(partials + first, num_groups, stride, std::min(kChunkColumns, columns - first),
               bias != nullptr ? bias + first : nullptr, out + first);
  };
  const std::int64_t num_chunks = (columns + kChunkColumns - 1) / kChunkColumns;
  if (num_groups * columns >= kParallelSize) {
    team.ParallelFor(num_chunks, std::ref(add));
  } else {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) add(chunk, 0);
  }
}

}  // namespace powerinfer
