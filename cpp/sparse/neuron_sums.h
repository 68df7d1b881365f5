// Sums of scaled neuron rows (a transposed down projection) in an order that no thread, no batch
// and no list of neurons can change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/rounding.h"
#include "base/thread_team.h"
#include "base/views.h"

namespace powerinfer {

/// Neurons [0, num_neurons) cut into ranges that depend on nothing else. A range is one thread's
/// piece of work, and its down rows are summed into a vector of its own; the vectors are then added
/// in the order of the ranges. The last ranges are smaller, so that threads finish together.
class NeuronRanges {
 public:
  /// small_range: approximate size of a range if there are few neurons.
  explicit NeuronRanges(std::int64_t num_neurons, std::int64_t small_range = 64);

  std::int64_t Count() const { return count_; }
  std::int64_t Begin(std::int64_t range) const;
  std::int64_t End(std::int64_t range) const { return Begin(range + 1); }
  std::int64_t Size(std::int64_t range) const { return End(range) - Begin(range); }
  /// Neurons of the longest range.
  std::int64_t MaxSize() const;

 private:
  std::int64_t num_neurons_;
  std::int64_t count_;
};

/// Columns that AddTerms holds in registers while it adds all terms of a token.
inline constexpr std::int64_t kSumColumns = 32;

/// out[t, c] = start of token t at column c, plus factor * row[c] for each of its terms, in order.
/// start(t, first, count, block) fills f32[count]; for_each(t, add) calls add(row, factor) for
/// every term. num_terms: about how many there are for all tokens together.
template <typename Start, typename ForEachTerm>
void AddTerms(ThreadTeam& team, std::int64_t num_terms, RowsView<float> out, const Start& start,
              const ForEachTerm& for_each);

/// Sums by range and token.
struct RangeSums {
  float* sums = nullptr;              ///< f32[num_ranges, num_tokens, columns]
  std::int64_t* num_terms = nullptr;  ///< i64[num_ranges, num_tokens]; sums of none are not read
  std::int64_t num_ranges = 0;
  std::int64_t num_tokens = 0;
  std::int64_t columns = 0;

  float* Row(std::int64_t range, std::int64_t token) const {
    return sums + (range * num_tokens + token) * columns;
  }
  std::int64_t& NumTerms(std::int64_t range, std::int64_t token) const {
    return num_terms[range * num_tokens + token];
  }
};

/// out[t, c] = bias[c] + sum over r of sums[r, t, c], in the order of the ranges; bias may be null.
void AddRanges(ThreadTeam& team, const RangeSums& sums, const float* bias, RowsView<float> out);

template <typename Start, typename ForEachTerm>
void AddTerms(ThreadTeam& team, std::int64_t num_terms, RowsView<float> out, const Start& start,
              const ForEachTerm& for_each) {
  constexpr std::int64_t kChunkColumns = 512;
  // Below this many numbers waking the team costs more than adding alone.
  constexpr std::int64_t kParallelSize = 16 * 1024;
  const std::int64_t chunks = DivideUp(out.columns, kChunkColumns);
  const auto add_block = [&](std::int64_t token, std::int64_t first, std::int64_t count) {
    float block[kSumColumns] = {};
    start(token, first, count, block);
    for_each(token, [&](const float* row, float factor) {
      row += first;
      if (count == kSumColumns) {
        for (std::int64_t i = 0; i < kSumColumns; ++i) block[i] += factor * row[i];
      } else {
        for (std::int64_t i = 0; i < count; ++i) block[i] += factor * row[i];
      }
    });
    std::copy_n(block, count, out.Row(token) + first);
  };
  const auto add = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t begin = chunk % chunks * kChunkColumns;
    const std::int64_t end = std::min(begin + kChunkColumns, out.columns);
    for (std::int64_t first = begin; first < end; first += kSumColumns) {
      add_block(chunk / chunks, first, std::min(kSumColumns, end - first));
    }
  };
  const std::int64_t num_chunks = chunks * out.rows;
  if (num_terms * out.columns >= kParallelSize) {
    team.ParallelFor(num_chunks, std::ref(add));
  } else {
    for (std::int64_t chunk = 0; chunk < num_chunks; ++chunk) add(chunk, 0);
  }
}

}  // namespace powerinfer
