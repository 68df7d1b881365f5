// An exchange with layers, and a plain thread that plays the other device.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hybrid/exchange.h"
#include "hybrid/signal_waiter.h"
#include "tests/ffn_testing.h"

namespace powerinfer::testing {

inline constexpr std::int64_t kMaxTokens = 4;

/// Buffers shared with the other device, with some layers and their flags.
struct TestExchange {
  FFNOptions options;
  Random random{3};
  std::int64_t words;
  SharedTeam team{3};
  std::vector<float> x;
  std::vector<std::uint32_t> cold;
  std::vector<float> y;
  std::vector<float> seen;  // input of predictors
  std::int32_t status = 0;
  std::vector<std::uint32_t> flags;
  std::vector<std::unique_ptr<FFNBlock>> blocks;
  Exchange exchange;

  explicit TestExchange(const FFNOptions& o, std::int64_t num_layers = 1)
      : options(o),
        words((o.intermediate_size + 31) / 32 + 1),
        x(RandomFloats(kMaxTokens * o.hidden_size, random)),
        cold(static_cast<std::size_t>(kMaxTokens * words)),
        y(x.size(), 7.0F),
        seen(RandomFloats(kMaxTokens * o.hidden_size, random)),
        flags(static_cast<std::size_t>(2 * num_layers)),
        exchange(team, Buffers()) {
    for (std::uint32_t& word : cold) word = static_cast<std::uint32_t>(random.Bits());
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      blocks.push_back(std::make_unique<FFNBlock>(o, random));
      REQUIRE_MESSAGE(exchange.AddLayer(blocks.back()->view) == layer, "wrong number of a layer");
    }
  }

  ExchangeBuffers Buffers() {
    const std::int64_t hidden = options.hidden_size;
    return {{x.data(), kMaxTokens, hidden, hidden},
            {cold.data(), kMaxTokens, words, words},
            {y.data(), kMaxTokens, hidden, hidden},
            &status,
            {seen.data(), kMaxTokens, hidden, hidden}};
  }

  ExchangeFlags Flags() {
    const auto num_layers = static_cast<std::int64_t>(blocks.size());
    return {flags.data(), flags.data() + num_layers, num_layers};
  }

  bool IsCold(std::int64_t token, std::int64_t neuron) const {
    const auto word = static_cast<std::size_t>(token * words + neuron / 32);
    return (cold[word] >> (neuron % 32) & 1U) != 0U;
  }

  /// The expected rows of y of a layer, computed on lists made here.
  std::vector<float> Expected(std::int64_t layer, std::int64_t num_tokens, FFNStats* stats) {
    std::vector<std::int64_t> offsets = {0};
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t i = 0; i < options.intermediate_size; ++i) {
        if (IsCold(t, i)) ids.push_back(static_cast<std::int32_t>(i));
      }
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
    FFNView view = blocks[static_cast<std::size_t>(layer)]->view;
    view.down_bias = nullptr;
    const std::int64_t hidden = options.hidden_size;
    std::vector<float> out(static_cast<std::size_t>(num_tokens * hidden));
    TestTeam own(1);
    RunListedFFN(own.context, {x.data(), num_tokens, hidden, hidden}, view,
                 {offsets.data(), ids.data(), num_tokens}, {out.data(), num_tokens, hidden, hidden},
                 stats);
    return out;
  }

  void CheckResult(const std::vector<float>& expected, const std::string& what) const {
    const std::vector<float> got(y.begin(), y.begin() + std::ssize(expected));
    REQUIRE_MESSAGE(SameBits(got, expected), options.Name(), ": ", what, " differs");
  }
};

/// The other device in memory-operation mode: one layer after the other, as a stream does.
class Device {
 public:
  explicit Device(TestExchange* t) : t_(t), flags_(t->Flags()) {}

  void Signal(std::int64_t layer) const {
    std::atomic_ref<std::uint32_t>(flags_.ready[layer]).store(1, std::memory_order_release);
  }
  void Wait(std::int64_t layer) const {
    const std::atomic_ref<std::uint32_t> done(flags_.done[layer]);
    while (done.load(std::memory_order_acquire) != 1U) std::this_thread::yield();
    done.store(0, std::memory_order_relaxed);
  }
  /// Gives every layer new input and returns the results.
  std::vector<std::vector<float>> Run(const std::vector<float>& inputs) const {
    std::vector<std::vector<float>> results;
    for (std::int64_t layer = 0; layer < flags_.num_layers; ++layer) {
      std::copy_n(inputs.begin() + layer * std::ssize(t_->x), t_->x.size(), t_->x.begin());
      Signal(layer);
      Wait(layer);
      results.push_back(t_->y);
    }
    return results;
  }

 private:
  TestExchange* t_;
  ExchangeFlags flags_;
};

inline std::vector<std::int64_t> AllLayers(const TestExchange& t) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < std::ssize(t.blocks); ++i) layers.push_back(i);
  return layers;
}

}  // namespace powerinfer::testing
