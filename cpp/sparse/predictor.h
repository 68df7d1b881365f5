// Neuron predictors: which neurons may fire, from a small network or a low-precision copy of the
// rows ("Adaptive Sparsity Predictor").
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"
#include "sparse/expert_filler.h"
#include "sparse/neuron_list.h"

namespace powerinfer {

/// One test: neuron i passes iff dot(matrix row i, input) + bias[i] >= threshold. A NaN score
/// passes: skipping must not hide damage.
struct ScoreStage {
  MatrixView matrix;  ///< [intermediate_size, columns]; columns beyond the input's multiply zeros
  const float* bias = nullptr;  ///< f32[intermediate_size] or null
  float threshold = 0.0F;

  bool Passes(float score) const { return !(score < threshold); }
};

// Three kinds in a cascade, each with a stage for gate and one for up.
inline constexpr std::int64_t kMaxScoreStages = 6;
/// Inputs are padded with zeros to a multiple of this, the longest block of any format.
inline constexpr std::int64_t kPredictorPadding = 256;

/// The input minus `center` goes through relu(fc1 input) if there is fc1, then through the stages
/// in order; a later stage sees only neurons that passed the earlier ones.
struct PredictorView {
  MatrixView fc1;                 ///< [rank, hidden_size or more] or without data
  const float* center = nullptr;  ///< f32[hidden_size] or null
  std::array<ScoreStage, kMaxScoreStages> stages;
  std::int64_t num_stages = 0;
  /// If not 1, fc1 is [num_experts * rank, hidden_size or more]: one hidden layer per expert.
  /// Neurons are in the order of the experts, and see only the hidden layer of their own.
  std::int64_t num_experts = 1;
  const ExpertFiller* filler = nullptr;  ///< as FFNView's

  bool HasHiddenLayer() const { return fc1.data != nullptr; }
  bool HasExpertLayers() const { return HasHiddenLayer() && num_experts > 1; }
  std::int64_t Rank() const { return fc1.rows / num_experts; }
  std::int64_t IntermediateSize() const { return stages[0].matrix.rows; }
  /// For expert `expert` of a block with `count` experts of one size.
  PredictorView Expert(std::int64_t expert, std::int64_t count) const;
};

/// Counts of a predictor; calls add to them.
struct PredictorStats {
  std::int64_t predicted = 0;   ///< neurons that passed, over tokens
  std::int64_t bytes_read = 0;  ///< weight bytes read
  double seconds = 0.0;         ///< time spent; of work split over threads, their mean
};

/// The input of the score stages: x less the center, or the hidden layer, which is added to stats.
/// Padded with zeros to a multiple of kPredictorPadding; in the scratch of `context`.
RowsView<float> PredictorInput(const OpContext& context, RowsView<const float> x,
                               const PredictorView& predictor, PredictorStats* stats);

/// x less the center, padded with zeros to a multiple of kPredictorPadding; in the scratch of
/// `context`.
RowsView<float> CenteredInput(const OpContext& context, RowsView<const float> x,
                              const PredictorView& predictor);

/// The columns of a padded input that a matrix multiplies with.
inline RowsView<const float> ColumnsFor(const MatrixView& matrix, RowsView<float> input) {
  return {input.data, input.rows, matrix.columns, input.stride};
}

/// The input of all score stages, in the forms that their formats take.
const ActivationRow* PrepareStageInput(const OpContext& context, RowsView<const float> input,
                                       const PredictorView& predictor);

/// A predictor with its input for some decode rows, ready for ranges of neurons in any order and on
/// any thread. Refers to all that it is given.
class PreparedPredictor {
 public:
  /// x: f32[num_tokens, hidden_size]. Runs the hidden layer and adds it to stats. Its scratch is
  /// context.Nested(), so the caller may use that of `context` meanwhile.
  PreparedPredictor(const OpContext& context, RowsView<const float> x,
                    const PredictorView& predictor, PredictorStats* stats);
  /// With input from PrepareStageInput.
  PreparedPredictor(const OpContext& context, const PredictorView& predictor,
                    const ActivationRow* input, std::int64_t num_tokens)
      : context_(context), predictor_(predictor), num_tokens_(num_tokens), input_(input) {}

  const ActivationRow* Input() const { return input_; }

  /// Fills an empty list with the neurons of [begin, end) that pass. scores: f32[num_tokens *
  /// (end - begin)], scratch. Returns the bytes read.
  std::int64_t Score(std::int64_t begin, std::int64_t end, float* scores, NeuronList* list) const;

 private:
  const OpContext& context_;
  const PredictorView& predictor_;
  std::int64_t num_tokens_;
  const ActivationRow* input_ = nullptr;
};

/// Products of rows [begin, end) with all tokens: out[t * stride + i] for row begin + i, plus bias
/// if there is one. Rows are read once for all tokens.
void ScoreRows(const OpContext& context, const MatrixView& matrix, const float* bias,
               const ActivationRow* x, std::int64_t num_tokens, std::int64_t begin,
               std::int64_t end, float* out, std::int64_t stride);

/// Lists the neurons that pass for each token: offsets i64[num_tokens + 1] and ids as in NeuronIds.
/// Any number of tokens; the neurons that pass for a token do not depend on the others. Prompt rows
/// multiply the first stage as Linear does, later stages as RunPrefillFFN does listed neurons.
void PredictNeurons(const OpContext& context, RowsView<const float> x,
                    const PredictorView& predictor, std::vector<std::int64_t>* offsets,
                    std::vector<std::int32_t>* ids, PredictorStats* stats);

}  // namespace powerinfer
