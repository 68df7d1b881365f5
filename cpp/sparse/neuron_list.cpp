#include "sparse/neuron_list.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

namespace powerinfer {
namespace {

// Bytes to have on the way: what memory delivers while it answers one request, and some more.
constexpr std::int64_t kPrefetchBytes = 6 * 1024;

std::int64_t PrefetchDistance(const MatrixView& matrix) {
  return 1 + kPrefetchBytes / std::max<std::int64_t>(1, matrix.row_bytes);
}

/// Fetches the row of the neuron at `place` if the list is that long.
void PrefetchRow(const MatrixView& matrix, const NeuronList& list, std::int64_t place) {
  if (place >= list.num_neurons) return;
  const std::uint8_t* data = matrix.Row(list.ids[place]);
  for (std::int64_t i = 0; i < matrix.row_bytes; i += 64) __builtin_prefetch(data + i, 0, 2);
}

}  // namespace

NeuronList::NeuronList(void* memory, std::int64_t max_neurons, std::int64_t num_tokens) {
  // Appending writes one place beyond the end before it knows whether to keep it.
  const std::int64_t max_entries = max_neurons * num_tokens + 1;
  ids = static_cast<std::int32_t*>(memory);
  ends = ids + max_neurons + 1;
  tokens = ends + max_neurons + 1;
  values = reinterpret_cast<float*>(tokens + max_entries);
  up = values + max_entries;
}

std::int64_t NeuronList::NumBytes(std::int64_t max_neurons, std::int64_t num_tokens) {
  return 4 * (2 * (max_neurons + 1) + 3 * (max_neurons * num_tokens + 1));
}

void ListNeurons(const NeuronIds& ids, std::int64_t begin, std::int64_t end, std::uint32_t* masks,
                 NeuronList* list) {
  std::fill(masks, masks + (end - begin), 0U);
  for (std::int64_t token = 0; token < ids.num_tokens; ++token) {
    const std::span<const std::int32_t> all = ids.Of(token);
    const auto last = std::lower_bound(all.begin(), all.end(), end);
    for (auto id = std::lower_bound(all.begin(), last, begin); id != last; ++id) {
      masks[*id - begin] |= 1U << static_cast<std::uint32_t>(token);
    }
  }
  for (std::int64_t id = begin; id < end; ++id) {
    std::int64_t entry = list->num_entries;
    for (std::uint32_t mask = masks[id - begin]; mask != 0; mask &= mask - 1) {
      list->tokens[entry++] = std::countr_zero(mask);
    }
    list->FinishNeuron(static_cast<std::int32_t>(id), entry);
  }
}

void DotNeurons(const MatrixView& matrix, const float* bias, const ActivationRow* x,
                const NeuronList& list, float* out) {
  const DotRowsFn dot_rows = Kernels().dot_rows[static_cast<std::size_t>(matrix.format)];
  const std::int64_t distance = PrefetchDistance(matrix);
  for (std::int64_t i = 0; i < distance; ++i) PrefetchRow(matrix, list, i);
  std::int64_t entry = 0;
  for (std::int64_t i = 0; i < list.num_neurons; ++i) {
    PrefetchRow(matrix, list, i + distance);
    const std::uint8_t* row = matrix.Row(list.ids[i]);
    const std::int64_t begin = entry;
    const std::int64_t end = list.ends[i];
    for (; entry < end; entry += kMaxDotTokens) {
      const std::int64_t count = std::min(kMaxDotTokens, end - entry);
      std::array<ActivationRow, kMaxDotTokens> inputs;
      for (std::int64_t t = 0; t < count; ++t) {
        inputs[static_cast<std::size_t>(t)] = x[list.tokens[entry + t]];
      }
      dot_rows(row, matrix.row_bytes, 1, matrix.columns, inputs.data(), count, out + entry, 1);
    }
    entry = end;
    if (bias == nullptr) continue;
    for (std::int64_t e = begin; e < end; ++e) out[e] += bias[list.ids[i]];
  }
}

void AddNeurons(const MatrixView& matrix, const NeuronList& list, RowsView<float> sums) {
  const AxpyRowFn axpy_row = Kernels().axpy_row[static_cast<std::size_t>(matrix.format)];
  const std::int64_t distance = PrefetchDistance(matrix);
  for (std::int64_t i = 0; i < distance; ++i) PrefetchRow(matrix, list, i);
  std::int64_t entry = 0;
  for (std::int64_t i = 0; i < list.num_neurons; ++i) {
    PrefetchRow(matrix, list, i + distance);
    for (; entry < list.ends[i]; ++entry) {
      axpy_row(matrix.Row(list.ids[i]), matrix.columns, list.values[entry],
               sums.Row(list.tokens[entry]));
    }
  }
}

}  // namespace powerinfer
