#include "ops/state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/exp.h"
#include "base/rounding.h"
#include "base/row_chunks.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kFloatsPerLine = 16;
// Whole vectors, so that a channel is computed alike wherever channels end.
constexpr std::int64_t kBlockChannels = 128;

/// Floats from slot to slot: whole cache lines. Throws std::invalid_argument.
std::int64_t CheckedStride(std::int64_t num_slots, std::int64_t size) {
  if (num_slots < 1 || size < 0) {
    throw std::invalid_argument("a layer of states needs at least one slot");
  }
  if (size > std::numeric_limits<std::int64_t>::max() / 8 / num_slots - kFloatsPerLine) {
    throw std::invalid_argument("states of this size cannot be addressed");
  }
  return RoundUp(std::max<std::int64_t>(1, size), kFloatsPerLine);
}

void CheckSlot(std::int64_t slot, std::int64_t lowest, const StateLayer& state) {
  if (slot >= lowest && slot < state.NumSlots()) return;
  throw std::out_of_range("slot " + std::to_string(slot) + " of states is not in [0, " +
                          std::to_string(state.NumSlots()) + ")");
}

/// The state of a sequence, for its tokens to be filled in.
StateSpan SpanOf(const BatchView& batch, const StateLayer& state, std::int64_t sequence) {
  if (sequence < 0 || sequence >= batch.num_sequences) {
    throw std::out_of_range("sequence " + std::to_string(sequence) + " has no state; there are " +
                            std::to_string(batch.num_sequences));
  }
  const std::int64_t source = batch.state_sources[sequence];
  const std::int64_t target = batch.state_targets[sequence];
  CheckSlot(source, -1, state);
  CheckSlot(target, 0, state);
  StateSpan span;
  span.before = source < 0 ? nullptr : state.Slot(source);
  span.after = state.Slot(target);
  return span;
}

/// Throws unless each slot that is written belongs to one sequence, and none of them is read.
void CheckOwners(const std::vector<StateSpan>& spans) {
  std::vector<const float*> written, read;
  for (const StateSpan& span : spans) {
    written.push_back(span.after);
    if (span.before != nullptr) read.push_back(span.before);
  }
  std::ranges::sort(written);
  const auto is_written = [&](const float* slot) {
    return std::ranges::binary_search(written, slot);
  };
  if (std::ranges::adjacent_find(written) != written.end() ||
      std::ranges::any_of(read, is_written)) {
    throw std::invalid_argument("a slot that a step writes belongs to one sequence, to no other");
  }
}

/// One block of channels of one sequence.
class ChannelBlock {
 public:
  ChannelBlock(const KernelTable& kernels, const StateSpan& span, const Convolution& conv,
               std::int64_t first)
      : kernels_(kernels),
        span_(span),
        conv_(conv),
        first_(first),
        count_(std::min(kBlockChannels, conv.input.columns - first)) {
    for (std::int64_t c = 0; c < count_; ++c) {
      const float* taps = conv.weight + (first + c) * conv.num_taps;
      for (std::int64_t j = 0; j < conv.num_taps; ++j) {
        weights_[static_cast<std::size_t>(j * count_ + c)] = taps[j];
      }
    }
  }

  void Run(const ChannelsFn& prepare, const ChannelsFn& finish) const {
    std::array<const float*, kMaxTaps> inputs = {};
    for (std::int64_t t = 0; t < span_.num_tokens; ++t) {
      const std::int64_t token = span_.first_token + t;
      prepare(token, first_, count_);
      for (std::int64_t j = 0; j < conv_.num_taps; ++j) {
        inputs[static_cast<std::size_t>(j)] = Input(t - conv_.num_taps + 1 + j);
      }
      kernels_.convolve(inputs.data(), weights_.data(), conv_.num_taps, count_,
                        conv_.out.Row(token) + first_);
      finish(token, first_, count_);
    }
    for (std::int64_t j = 0; j < conv_.num_taps - 1; ++j) {
      std::copy_n(Input(span_.num_tokens - conv_.num_taps + 1 + j), count_,
                  span_.after + j * conv_.input.columns + first_);
    }
  }

 private:
  /// Inputs of a token of the span; those before the first are columns of the state.
  const float* Input(std::int64_t t) const {
    if (t >= 0) return conv_.input.Row(span_.first_token + t) + first_;
    if (span_.before == nullptr) return kZeros.data();
    return span_.before + (conv_.num_taps - 1 + t) * conv_.input.columns + first_;
  }

  static constexpr std::array<float, kBlockChannels> kZeros = {};

  const KernelTable& kernels_;
  const StateSpan& span_;
  const Convolution& conv_;
  std::int64_t first_;
  std::int64_t count_;
  std::array<float, kMaxTaps * kBlockChannels> weights_;  // [num_taps, count]
};

}  // namespace

StateLayer::StateLayer(std::int64_t num_slots, std::int64_t size)
    : num_slots_(num_slots),
      size_(size),
      stride_(CheckedStride(num_slots, size)),
      memory_(static_cast<std::size_t>(NumBytes()), false) {}

std::vector<StateSpan> StateSpans(const BatchView& batch, const StateLayer& state) {
  if (batch.state_sources == nullptr && batch.num_tokens > 0) {
    throw std::invalid_argument("the batch names no slots of states");
  }
  std::vector<StateSpan> spans;
  std::vector<bool> is_known(static_cast<std::size_t>(batch.num_sequences));
  for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
    const std::int64_t sequence = batch.sequences[t];
    if (t == 0 || sequence != batch.sequences[t - 1]) {
      spans.push_back(SpanOf(batch, state, sequence));
      spans.back().first_token = t;
      if (is_known[static_cast<std::size_t>(sequence)]) {
        throw std::invalid_argument("the tokens of sequence " + std::to_string(sequence) +
                                    " do not stand together");
      }
      is_known[static_cast<std::size_t>(sequence)] = true;
    }
    ++spans.back().num_tokens;
  }
  CheckOwners(spans);
  return spans;
}

float Softplus(float x) {
  constexpr float kLinear = 20.0F;  // above this it is the identity, to the last bit
  return x > kLinear ? x : std::log1p(FastExp(x));
}

void Convolve(const OpContext& context, const std::vector<StateSpan>& spans,
              const Convolution& conv, const ChannelsFn& prepare, const ChannelsFn& finish) {
  const std::int64_t num_blocks = DivideUp(conv.input.columns, kBlockChannels);
  const auto num_spans = static_cast<std::int64_t>(spans.size());
  // A channel of a token is a multiply-add per tap and a function of the result.
  const std::int64_t cost =
      conv.input.rows * kBlockChannels * (conv.num_taps + 8) / std::max<std::int64_t>(1, num_spans);
  ForEachRow(context.team, num_spans * num_blocks, cost, [&](std::int64_t unit) {
    const StateSpan& span = spans[static_cast<std::size_t>(unit / num_blocks)];
    const std::int64_t first = unit % num_blocks * kBlockChannels;
    ChannelBlock(context.kernels, span, conv, first).Run(prepare, finish);
  });
}

}  // namespace powerinfer
