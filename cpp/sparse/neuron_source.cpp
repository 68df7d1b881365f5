#include "sparse/neuron_source.h"

#include <chrono>

namespace powerinfer {

void FiringNeurons::Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                         FFNStats* stats) const {
  auto* scores = static_cast<float*>(scratch);
  const std::int64_t size = end - begin;
  ScoreRows(context_, ffn_.DecidingMatrix(), ffn_.DecidingBias(), x_, num_tokens_, begin, end,
            scores, size);
  stats->bytes_read += size * ffn_.DecidingMatrix().row_bytes;
  VisitFires(ffn_.activation, [&](const auto& fires) {
    list->AppendPassing(begin, size, scores, size, num_tokens_, fires);
  });
}

void PredictedNeurons::Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                            FFNStats* stats) const {
  const auto start = std::chrono::steady_clock::now();
  stats->predictor_bytes += predictor_.Score(begin, end, static_cast<float*>(scratch), list);
  stats->predictor_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void ListedNeurons::Fill(std::int64_t begin, std::int64_t end, void* scratch, NeuronList* list,
                         FFNStats*) const {
  ListNeurons(ids_, begin, end, static_cast<std::uint32_t*>(scratch), list);
}

}  // namespace powerinfer
