// Sums of scaled neuron rows (a transposed down projection) in an order that no thread, no batch
// and no list of neurons can change.
#pragma once

#include <cstdint>

#include "base/thread_team.h"
#include "base/views.h"

namespace powerinfer {

/// Neurons [0, num_neurons) cut into ranges that depend on nothing else. A range is one thread's
/// piece of work, and its down rows are summed into a vector of its own; the vectors are then added
/// in the order of the ranges. The last ranges are smaller, so that threads finish together.
class NeuronRanges {
 public:
  explicit NeuronRanges(std::int64_t num_neurons);

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

}  // namespace powerinfer
