#include "sparse/neuron_sums.h"

#include <algorithm>
#include <functional>

#include "base/rounding.h"

namespace powerinfer {
namespace {

// A large block is cut into 128 parts: 24 ranges of four, 8 of two, 16 of one. With two threads the
// one that finishes first waits for half of a 128th on average, with sixteen nobody gets more than
// a half more than others; each range costs one vector written and read.
constexpr std::int64_t kParts = 128;
constexpr std::int64_t kLongRanges = 24;
constexpr std::int64_t kMiddleRanges = 8;
constexpr std::int64_t kShortRanges = 16;
static_assert(4 * kLongRanges + 2 * kMiddleRanges + kShortRanges == kParts);

// Below this many neurons ranges are equal and of about kSmallRange.
constexpr std::int64_t kManyNeurons = 16 * kParts;
constexpr std::int64_t kSmallRange = 64;

constexpr std::int64_t kChunkColumns = 512;
// Sums held in registers while all ranges are added.
constexpr std::int64_t kBlockColumns = 32;
// Below this many numbers waking the team costs more than adding alone.
constexpr std::int64_t kParallelSize = 16 * 1024;

/// Columns [first, first + count) of one token, count at most kBlockColumns.
void AddBlock(const RangeSums& sums, std::int64_t token, std::int64_t first, std::int64_t count,
              const float* bias, float* out) {
  float block[kBlockColumns] = {};
  if (bias != nullptr) std::copy_n(bias + first, count, block);
  for (std::int64_t range = 0; range < sums.num_ranges; ++range) {
    if (sums.NumTerms(range, token) == 0) continue;
    const float* row = sums.Row(range, token) + first;
    if (count == kBlockColumns) {
      for (std::int64_t i = 0; i < kBlockColumns; ++i) block[i] += row[i];
    } else {
      for (std::int64_t i = 0; i < count; ++i) block[i] += row[i];
    }
  }
  std::copy_n(block, count, out + first);
}

}  // namespace

NeuronRanges::NeuronRanges(std::int64_t num_neurons)
    : num_neurons_(num_neurons),
      count_(num_neurons >= kManyNeurons
                 ? kLongRanges + kMiddleRanges + kShortRanges
                 : std::max<std::int64_t>(1, (num_neurons + kSmallRange / 2) / kSmallRange)) {}

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
  const std::int64_t chunks = DivideUp(sums.columns, kChunkColumns);
  const auto add = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t token = chunk / chunks;
    const std::int64_t begin = chunk % chunks * kChunkColumns;
    const std::int64_t end = std::min(begin + kChunkColumns, sums.columns);
    for (std::int64_t first = begin; first < end; first += kBlockColumns) {
      AddBlock(sums, token, first, std::min(kBlockColumns, end - first), bias, out.Row(token));
    }
  };
  const std::int64_t num_chunks = chunks * sums.num_tokens;
  if (sums.num_ranges * sums.num_tokens * sums.columns >= kParallelSize) {
    team.ParallelFor(num_chunks, std::ref(add));
  } else {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) add(chunk, 0);
  }
}

}  // namespace powerinfer
