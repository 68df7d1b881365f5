#include "sparse/neuron_sums.h"

#include <algorithm>

namespace powerinfer {
namespace {

// A large block is cut into 128 parts: 24 ranges of four, 8 of two, 16 of one. With two threads the
// one that finishes first waits for half of a 128th on average, with sixteen no thread gets more
// than half as much again as another; each range costs one vector written and read.
constexpr std::int64_t kParts = 128;
constexpr std::int64_t kLongRanges = 24;
constexpr std::int64_t kMiddleRanges = 8;
constexpr std::int64_t kShortRanges = 16;
static_assert(4 * kLongRanges + 2 * kMiddleRanges + kShortRanges == kParts);

// Below this many neurons ranges are equal.
constexpr std::int64_t kManyNeurons = 16 * kParts;

}  // namespace

NeuronRanges::NeuronRanges(std::int64_t num_neurons, std::int64_t small_range)
    : num_neurons_(num_neurons),
      count_(num_neurons >= kManyNeurons
                 ? kLongRanges + kMiddleRanges + kShortRanges
                 : std::max<std::int64_t>(1, (num_neurons + small_range / 2) / small_range)) {}

std::int64_t NeuronRanges::Begin(std::int64_t range) const {
  if (num_neurons_ < kManyNeurons) return num_neurons_ * range / count_;
  const std::int64_t middle = std::clamp<std::int64_t>(range - kLongRanges, 0, kMiddleRanges);
  const std::int64_t last = std::max<std::int64_t>(range - kLongRanges - kMiddleRanges, 0);
  const std::int64_t part = 4 * std::min(range, kLongRanges) + 2 * middle + last;
  return num_neurons_ * part / kParts;
}

std::int64_t NeuronRanges::MaxSize() const {
  std::int64_t size = 0;
  for (std::int64_t range = 0; range < count_; ++range) size = std::max(size, Size(range));
  return size;
}

void AddRanges(ThreadTeam& team, const RangeSums& sums, const float* bias, RowsView<float> out) {
  const auto start = [bias](std::int64_t, std::int64_t first, std::int64_t count, float* block) {
    if (bias != nullptr) std::copy_n(bias + first, count, block);
  };
  const auto for_each = [&sums](std::int64_t token, const auto& add) {
    for (std::int64_t range = 0; range < sums.num_ranges; ++range) {
      if (sums.NumTerms(range, token) > 0) add(sums.Row(range, token), 1.0F);
    }
  };
  AddTerms(team, sums.num_ranges * sums.num_tokens, out, start, for_each);
}

}  // namespace powerinfer
