// Choice of the neurons of a range that are computed for a small batch: by their gate values, a
// predictor or lists of ids.
#pragma once

#include <cstdint>

#include "ops/op_context.h"
#include "sparse/ffn.h"
#include "sparse/neuron_list.h"
#include "sparse/predictor.h"

namespace powerinfer {

/// Chooses the neurons of ranges for some tokens; on several threads at once.
class NeuronSource {
 public:
  NeuronSource() = default;
  NeuronSource(const NeuronSource&) = default;
  NeuronSource& operator=(const NeuronSource&) = delete;
  virtual ~NeuronSource() = default;

  /// Fills an empty list with neurons of [begin, end). scratch: 4 bytes per pair of neuron and
  /// token. Counts bytes and seconds of the thread.
  virtual void Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                    FFNStats* stats) const = 0;
  /// True if the list's values are the deciding matrix's products already, and all fire.
  virtual bool HasValues() const { return false; }
};

/// The deciding matrix for all neurons of a range; those that fire, with their values.
class FiringNeurons final : public NeuronSource {
 public:
  FiringNeurons(const OpContext& context, const FFNView& ffn, const ActivationRow* x,
                std::int64_t num_tokens)
      : context_(context), ffn_(ffn), x_(x), num_tokens_(num_tokens) {}
  void Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
            FFNStats* stats) const override;
  bool HasValues() const override { return true; }

 private:
  const OpContext& context_;
  const FFNView& ffn_;
  const ActivationRow* x_;
  std::int64_t num_tokens_;
};

/// The neurons that the predictor lets pass.
class PredictedNeurons final : public NeuronSource {
 public:
  explicit PredictedNeurons(const PreparedPredictor& predictor) : predictor_(predictor) {}
  void Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
            FFNStats* stats) const override;

 private:
  PreparedPredictor predictor_;
};

/// The neurons in the tokens' lists.
class ListedNeurons final : public NeuronSource {
 public:
  explicit ListedNeurons(const NeuronIds& ids) : ids_(ids) {}
  void Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
            FFNStats* stats) const override;

 private:
  NeuronIds ids_;
};

}  // namespace powerinfer
