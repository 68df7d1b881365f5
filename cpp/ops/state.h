// States of sequences in one layer, and the causal convolutions that keep one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/page_memory.h"
#include "base/views.h"
#include "ops/kv_cache.h"
#include "ops/op_context.h"

namespace powerinfer {

/// f32[num_slots, size]. Memory is committed when it is first written.
class StateLayer {
 public:
  /// Throws std::invalid_argument.
  StateLayer(std::int64_t num_slots, std::int64_t size);

  std::int64_t NumSlots() const { return num_slots_; }
  std::int64_t Size() const { return size_; }
  /// Bytes of all slots, including what aligns them.
  std::int64_t NumBytes() const { return num_slots_ * stride_ * 4; }

  float* Slot(std::int64_t slot) const {
    // Pages, so aligned for float.
    return reinterpret_cast<float*>(memory_.Data()) + slot * stride_;
  }

 private:
  std::int64_t num_slots_;
  std::int64_t size_;
  std::int64_t stride_;  // floats from slot to slot
  PageMemory memory_;
};

/// A state of fewer numbers may stay in the second-level cache of a thread until the next step.
inline constexpr std::int64_t kLargeState = 128 * 1024;

/// The tokens of one sequence in a batch, and its state before and after them.
struct StateSpan {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  const float* before = nullptr;  ///< null: zeros
  float* after = nullptr;

  /// True if a state of `size` numbers that the span leaves need not stay in a cache: the next step
  /// reads it after all weights of a model.
  bool IsReadLate(std::int64_t size) const { return num_tokens == 1 && size >= kLargeState; }
};

/// The sequences of a batch in order. Throws std::invalid_argument if the batch names no slots, if
/// the tokens of a sequence do not stand together, or if a slot that is written belongs to two
/// sequences or is read; std::out_of_range if there is no such slot.
std::vector<StateSpan> StateSpans(const BatchView& batch, const StateLayer& state);

/// log(1 + e^x): how long a token acts on a state.
float Softplus(float x);

inline constexpr std::int64_t kMaxTaps = 16;

/// A causal convolution of each channel: out[t, c] = sum over j < num_taps of
/// weight[c * num_taps + j] * input[t - num_taps + 1 + j, c]. Inputs before the first token of a
/// span are the columns of its state, [num_taps - 1, num_channels] at its beginning.
struct Convolution {
  const float* weight = nullptr;
  std::int64_t num_taps = 0;  ///< 1 to kMaxTaps
  RowsView<const float> input;
  RowsView<float> out;

  std::int64_t NumColumns() const { return (num_taps - 1) * input.columns; }
};

/// Computes it for all spans, and their columns after. Of each token, `prepare` may fill channels
/// [first, first + count) of the input before they are read, `finish` change those of the output;
/// their bits must not depend on how channels are cut.
using ChannelsFn = std::function<void(std::int64_t token, std::int64_t first, std::int64_t count)>;
void Convolve(const OpContext& context, const std::vector<StateSpan>& spans,
              const Convolution& conv, const ChannelsFn& prepare, const ChannelsFn& finish);

}  // namespace powerinfer
