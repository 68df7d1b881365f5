// The CPU half of a feed-forward block whose neurons lie on two devices. The other device writes
// the input and the wanted neurons to shared buffers and reads the result there.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/views.h"
#include "ops/shared_team.h"
#include "sparse/ffn.h"
#include "sparse/predictor.h"

namespace powerinfer {

/// Buffers shared with the other device, used by all layers in turn.
struct ExchangeBuffers {
  RowsView<const float> x;             ///< f32[max_tokens, hidden_size], input of the block
  RowsView<const std::uint32_t> cold;  ///< u32[max_tokens, words]: bit i % 32 of word i / 32 set
                                       ///< if neuron i is to be computed here
  RowsView<float> y;                   ///< f32[max_tokens, hidden_size], result, without down_bias
  std::int32_t* status = nullptr;      ///< an ExchangeStatus
  /// f32[max_tokens, hidden_size], input of predictors; no data if there are none.
  RowsView<const float> predictor_input = {};
  /// The same for the routers of layers that predict here; no data if none of them has experts.
  RowsView<const float> router_input = {};
  /// f32[max_tokens, num_experts], for layers whose experts the other device chooses: factors of
  /// the values of an expert's neurons, 0 if it is not chosen; or no data.
  RowsView<const float> expert_weights = {};
};

/// Outcome of a step, for the program of the other device.
enum class ExchangeStatus : std::int32_t { kGood = 0, kFailed = 1, kTimedOut = 2 };

/// Computes the neurons of a layer whose cold bits are set (bits beyond the last neuron are
/// ignored), or those that the layer's predictor lets pass. Calls from several threads run one
/// after the other.
class Exchange {
 public:
  /// The team and the buffers must outlive the exchange.
  Exchange(SharedTeam& team, const ExchangeBuffers& buffers);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Adds a layer and returns its number. A predictor decides for all neurons, and the cold bits
  /// are ignored; it must belong to this block and take inputs as wide as predictor_input. The
  /// weights must outlive the exchange. Not while another call runs. The other device chooses the
  /// experts of a token, unless there is a predictor: then the layer's router does. Throws
  /// std::invalid_argument if the block does not fit the buffers, or if they have no input for a
  /// predictor or a router, or no weights of experts.
  std::int64_t AddLayer(const FFNView& ffn, const PredictorView* predictor = nullptr);
  std::int64_t NumLayers() const { return static_cast<std::int64_t>(layers_.size()); }
  std::int64_t MaxTokens() const { return buffers_.x.rows; }

  SharedTeam& Team() { return team_; }

  /// Throws std::out_of_range if there is no such layer, std::invalid_argument for a bad number of
  /// tokens.
  void Check(std::int64_t layer, std::int64_t num_tokens) const;

  /// y = the block over the neurons named by `cold`, or by the layer's predictor, for the first
  /// `num_tokens` rows, without the bias of down, unless experts are chosen here. Throws as Check.
  void Run(std::int64_t layer, std::int64_t num_tokens);

  /// Run for callers that cannot handle exceptions: a failure zeroes y, sets the status and is kept
  /// for TakeFailure.
  void RunGuarded(std::int64_t layer, std::int64_t num_tokens) noexcept;

  /// Keeps the team awake between calls, or lets it sleep; see ThreadTeam::HoldAwake. One caller at
  /// a time.
  void KeepAwake(bool is_awake);

  /// Sets the status and keeps the message, unless there is an earlier one.
  void ReportFailure(ExchangeStatus status, const char* message) noexcept;

  /// The first failure since the last call, if any; resets the status.
  std::optional<std::string> TakeFailure();

  /// Counts since the last call. `total` counts all neurons of the layers.
  FFNStats TakeStats();

 private:
  struct Layer {
    FFNView ffn;
    std::optional<PredictorView> predictor;  // decides instead of the cold bits
  };

  NeuronIds ListCold(std::int64_t num_neurons, std::int64_t num_tokens);
  void RunCold(const OpContext& context, const FFNView& ffn, RowsView<const float> x,
               RowsView<float> y, FFNStats* stats);
  void RunPredicted(const OpContext& context, const FFNView& ffn, const PredictorView& predictor,
                    RowsView<const float> x, RowsView<float> y, FFNStats* stats);

  SharedTeam& team_;
  ExchangeBuffers buffers_;
  std::deque<Layer> layers_;

  bool is_held_awake_ = false;

  // Owned by the operation that runs on the team.
  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> ids_;

  std::mutex mutex_;  // guards the members below
  FFNStats stats_;
  std::string failure_;
  bool has_failed_ = false;
};

}  // namespace powerinfer
