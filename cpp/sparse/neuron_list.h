// The neurons of one range that may fire, with the tokens of a batch they may fire for, and the
// products and sums of their rows. A row is read from memory once, however many tokens use it.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "kernels/kernel_table.h"
#include "ops/linear.h"

namespace powerinfer {

/// Ascending neurons; each has one entry per token it may fire for, tokens ascending. Lies in the
/// caller's memory; for one thread at a time.
struct NeuronList {
  std::int64_t num_neurons = 0;
  std::int64_t num_entries = 0;
  std::int32_t* ids = nullptr;     ///< i32[num_neurons]
  std::int32_t* ends = nullptr;    ///< i32[num_neurons]: end of a neuron's entries
  std::int32_t* tokens = nullptr;  ///< i32[num_entries]
  float* values = nullptr;         ///< f32[num_entries]: scores, then gate (ungated: up) values
  float* up = nullptr;             ///< f32[num_entries]

  /// An empty list in `memory`, aligned to 4 bytes, with room for every pair.
  NeuronList(void* memory, std::int64_t max_neurons, std::int64_t num_tokens);
  /// Bytes such a list takes.
  static std::int64_t NumBytes(std::int64_t max_neurons, std::int64_t num_tokens);

  std::int64_t Begin(std::int64_t neuron) const { return neuron == 0 ? 0 : ends[neuron - 1]; }

  /// Appends `count` neurons from `first` with those of their tokens for which
  /// passes(scores[t * stride + i]); scores become values.
  template <typename Passes>
  void AppendPassing(std::int64_t first, std::int64_t count, const float* scores,
                     std::int64_t stride, std::int64_t num_tokens, const Passes& passes) {
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t end = num_entries;
      // Every entry is written, but the end moves on only for those that pass: no branch to
      // mispredict.
      for (std::int64_t token = 0; token < num_tokens; ++token) {
        const float score = scores[token * stride + i];
        tokens[end] = static_cast<std::int32_t>(token);
        values[end] = score;
        end += passes(score) ? 1 : 0;
      }
      FinishNeuron(static_cast<std::int32_t>(first + i), end);
    }
  }

  /// Keeps entries with keeps(value, up), and neurons that have any; kMovesUp: there are values of
  /// up.
  template <bool kMovesUp, typename Keeps>
  void Filter(const Keeps& keeps) {
    const std::int64_t old_neurons = num_neurons;
    std::int64_t begin = 0;
    num_neurons = num_entries = 0;
    for (std::int64_t i = 0; i < old_neurons; ++i) {
      const std::int64_t old_end = ends[i];
      std::int64_t end = num_entries;
      for (std::int64_t entry = begin; entry < old_end; ++entry) {
        const float value = values[entry];
        const float other = kMovesUp ? up[entry] : 0.0F;
        tokens[end] = tokens[entry];
        values[end] = value;
        if constexpr (kMovesUp) up[end] = other;
        end += keeps(value, other) ? 1 : 0;
      }
      begin = old_end;
      FinishNeuron(ids[i], end);
    }
  }

  /// Appends a neuron that owns the entries from num_entries to `end`, unless there are none.
  void FinishNeuron(std::int32_t id, std::int64_t end) {
    ids[num_neurons] = id;
    ends[num_neurons] = static_cast<std::int32_t>(end);
    num_neurons += end > num_entries ? 1 : 0;
    num_entries = end;
  }
};

/// The ids of several tokens: row t has ids[offsets[t]] to ids[offsets[t + 1] - 1], ascending.
struct NeuronIds {
  const std::int64_t* offsets = nullptr;
  const std::int32_t* ids = nullptr;
  std::int64_t num_tokens = 0;
  const std::int32_t* rows = nullptr;  ///< i32[num_tokens]: token t has row rows[t]; null: row t

  std::span<const std::int32_t> Of(std::int64_t token) const {
    const std::int64_t row = rows != nullptr ? rows[token] : token;
    return {ids + offsets[row], static_cast<std::size_t>(offsets[row + 1] - offsets[row])};
  }
  /// Tokens [first, first + count), of ids that have no `rows`.
  NeuronIds Tokens(std::int64_t first, std::int64_t count) const {
    return {offsets + first, ids, count};
  }
  /// Some of the tokens, of ids that have no `rows`.
  NeuronIds Some(const std::int32_t* tokens, std::int64_t count) const {
    return {offsets, ids, count, tokens};
  }
};

/// Most tokens of NeuronIds that one list takes.
inline constexpr std::int64_t kMaxListTokens = 32;

/// Fills an empty list with the ids in [begin, end) of at most kMaxListTokens tokens.
/// masks: u32[end - begin], scratch.
void ListNeurons(const NeuronIds& ids, std::int64_t begin, std::int64_t end, std::uint32_t* masks,
                 NeuronList* list);

/// out[e] = dot(row of e's neuron, x of e's token) + bias of the neuron, for every entry; bias may
/// be null. Fetches the next rows while it works on one.
void DotNeurons(const OpContext& context, const MatrixView& matrix, const float* bias,
                const ActivationRow* x, const NeuronList& list, float* out);

/// sums.Row(t)[c] += sum over t's entries, neurons ascending, of value * matrix[neuron, c].
void AddNeurons(const OpContext& context, const MatrixView& matrix, const NeuronList& list,
                RowsView<float> sums);

}  // namespace powerinfer
