#include "hybrid/exchange.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "sparse/experts.h"

namespace powerinfer {
namespace {

constexpr std::int64_t kWordBits = 32;

/// Appends the numbers of the bits set among the first `count`; returns the new end.
std::int32_t* AppendSetBits(const std::uint32_t* words, std::int64_t count, std::int32_t* ids) {
  for (std::int64_t first = 0; first < count; first += kWordBits) {
    std::uint32_t word = words[first / kWordBits];
    const std::int64_t rest = count - first;
    if (rest < kWordBits) word &= (1U << rest) - 1U;
    for (; word != 0U; word &= word - 1U) {
      *ids++ = static_cast<std::int32_t>(first) + std::countr_zero(word);
    }
  }
  return ids;
}

template <typename T>
RowsView<T> FirstRows(RowsView<T> rows, std::int64_t count) {
  rows.rows = count;
  return rows;
}

/// Throws std::invalid_argument unless the buffers have what a layer of experts needs.
void CheckExperts(const FFNView& ffn, bool is_predicting, const ExchangeBuffers& buffers) {
  if (is_predicting && buffers.router_input.data == nullptr) {
    throw std::invalid_argument("the exchange has no input for routers");
  }
  if (is_predicting && buffers.router_input.columns != ffn.router.matrix.columns) {
    throw std::invalid_argument(
        "the router of the block sees " + std::to_string(ffn.router.matrix.columns) +
        " numbers, the exchange has " + std::to_string(buffers.router_input.columns));
  }
  if (!is_predicting && buffers.expert_weights.columns != ffn.NumExperts()) {
    throw std::invalid_argument("the block has " + std::to_string(ffn.NumExperts()) +
                                " experts, the exchange weights of " +
                                std::to_string(buffers.expert_weights.columns));
  }
}

}  // namespace

Exchange::Exchange(SharedTeam& team, const ExchangeBuffers& buffers)
    : team_(team), buffers_(buffers), offsets_(static_cast<std::size_t>(buffers.x.rows + 1)) {}

Exchange::~Exchange() { KeepAwake(false); }

void Exchange::KeepAwake(bool is_awake) {
  if (is_awake == is_held_awake_) return;
  if (is_awake) {
    team_.HoldAwake();
  } else {
    team_.LetSleep();
  }
  is_held_awake_ = is_awake;  // not reached if the team refuses, in a forked process
}

std::int64_t Exchange::AddLayer(const FFNView& ffn, const PredictorView* predictor) {
  const std::int64_t neurons = ffn.IntermediateSize();
  if (ffn.HiddenSize() != buffers_.x.columns) {
    throw std::invalid_argument("the block has the hidden size " +
                                std::to_string(ffn.HiddenSize()) + ", the exchange " +
                                std::to_string(buffers_.x.columns));
  }
  if (predictor != nullptr && buffers_.predictor_input.data == nullptr) {
    throw std::invalid_argument("the exchange has no input for predictors");
  }
  if (ffn.HasExperts()) CheckExperts(ffn, predictor != nullptr, buffers_);
  const std::int64_t words = (neurons + kWordBits - 1) / kWordBits;
  if (predictor == nullptr && words > buffers_.cold.columns) {
    throw std::invalid_argument(
        "the block has " + std::to_string(neurons) + " neurons, for which rows of cold bits need " +
        std::to_string(words) + " words; they have " + std::to_string(buffers_.cold.columns));
  }
  Layer layer{ffn, std::nullopt};
  // Added once, by the other device, unless only this one knows which experts are chosen.
  if (!ffn.HasExperts() || predictor == nullptr) layer.ffn.down_bias = nullptr;
  if (predictor != nullptr) {
    layer.predictor = *predictor;
  } else {
    ids_.resize(std::max(ids_.size(), static_cast<std::size_t>(neurons * MaxTokens())));
  }
  layers_.push_back(layer);
  return NumLayers() - 1;
}

void Exchange::Check(std::int64_t layer, std::int64_t num_tokens) const {
  if (layer < 0 || layer >= NumLayers()) {
    throw std::out_of_range("layer " + std::to_string(layer) + " is not in [0, " +
                            std::to_string(NumLayers()) + ")");
  }
  if (num_tokens < 1 || num_tokens > MaxTokens()) {
    throw std::invalid_argument("an exchange for 1 to " + std::to_string(MaxTokens()) +
                                " tokens cannot run " + std::to_string(num_tokens));
  }
}

NeuronIds Exchange::ListCold(std::int64_t num_neurons, std::int64_t num_tokens) {
  std::int32_t* end = ids_.data();
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    end = AppendSetBits(buffers_.cold.Row(token), num_neurons, end);
    offsets_[static_cast<std::size_t>(token + 1)] = end - ids_.data();
  }
  return {offsets_.data(), ids_.data(), num_tokens};
}

void Exchange::RunCold(const OpContext& context, const FFNView& ffn, RowsView<const float> x,
                       RowsView<float> y, FFNStats* stats) {
  const NeuronIds ids = ListCold(ffn.IntermediateSize(), x.rows);
  if (ids.offsets[x.rows] > 0 && ffn.HasExperts()) {
    RunWeightedExperts(context, x, FirstRows(buffers_.expert_weights, x.rows), ffn, ids, y, stats);
    return;
  }
  if (ids.offsets[x.rows] > 0) {
    RunListedFFN(context, x, ffn, ids, y, stats);
    return;
  }
  // Nothing to compute: a plain down would be read for nothing.
  for (std::int64_t token = 0; token < y.rows; ++token) {
    std::fill_n(y.Row(token), y.columns, 0.0F);
  }
  stats->total += x.rows * ffn.IntermediateSize();
}

void Exchange::RunPredicted(const OpContext& context, const FFNView& ffn,
                            const PredictorView& predictor, RowsView<const float> x,
                            RowsView<float> y, FFNStats* stats) {
  const RowsView<const float> predictor_input = FirstRows(buffers_.predictor_input, x.rows);
  if (ffn.HasExperts()) {
    RunExperts(context, x, FirstRows(buffers_.router_input, x.rows), ffn,
               {&predictor, predictor_input, nullptr}, y, stats);
  } else {
    RunPredictedFFN(context, x, ffn, predictor, predictor_input, y, stats);
  }
}

void Exchange::Run(std::int64_t layer, std::int64_t num_tokens) {
  Check(layer, num_tokens);
  const Layer& added = layers_[static_cast<std::size_t>(layer)];
  const RowsView<const float> x = FirstRows(buffers_.x, num_tokens);
  const RowsView<float> y = FirstRows(buffers_.y, num_tokens);
  FFNStats stats;
  team_.Run([&](const OpContext& context) {
    if (added.predictor) {
      RunPredicted(context, added.ffn, *added.predictor, x, y, &stats);
    } else {
      RunCold(context, added.ffn, x, y, &stats);
    }
  });
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_ += stats;
}

void Exchange::RunGuarded(std::int64_t layer, std::int64_t num_tokens) noexcept {
  try {
    Run(layer, num_tokens);
    return;
  } catch (const std::exception& error) {
    ReportFailure(ExchangeStatus::kFailed, error.what());
  } catch (...) {
    ReportFailure(ExchangeStatus::kFailed, "an unknown error");
  }
  for (std::int64_t token = 0; token < std::min(num_tokens, buffers_.y.rows); ++token) {
    std::fill_n(buffers_.y.Row(token), buffers_.y.columns, 0.0F);
  }
}

void Exchange::ReportFailure(ExchangeStatus status, const char* message) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_failed_) return;
  has_failed_ = true;
  try {
    failure_ = message;
  } catch (...) {
    failure_.clear();  // the status still says that it failed
  }
  std::atomic_ref<std::int32_t>(*buffers_.status)
      .store(static_cast<std::int32_t>(status), std::memory_order_release);
}

std::optional<std::string> Exchange::TakeFailure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!has_failed_) return std::nullopt;
  has_failed_ = false;
  std::atomic_ref<std::int32_t>(*buffers_.status)
      .store(static_cast<std::int32_t>(ExchangeStatus::kGood), std::memory_order_release);
  return std::exchange(failure_, {});
}

FFNStats Exchange::TakeStats() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(stats_, {});
}

}  // namespace powerinfer
