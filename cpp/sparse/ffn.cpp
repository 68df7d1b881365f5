#include "sparse/ffn.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>

#include "ops/blocked_product.h"
#include "sparse/active_neurons.h"
#include "sparse/neuron_sums.h"

namespace powerinfer {
namespace {

// Values activated by one thread at a time.
constexpr std::int64_t kActivationChunk = 8 * 1024;
// Tokens from which a transposed down is faster in blocks than as sums of scaled rows.
constexpr std::int64_t kTransposedGemmTokens = 8;

RowsView<float> Rows(float* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns};
}

RowsView<const float> ReadOnly(RowsView<float> x) { return {x.data, x.rows, x.columns, x.stride}; }

/// The matrix that decides which neurons fire.
const MatrixView& DecidingMatrix(const FFNView& ffn) { return ffn.HasGate() ? ffn.gate : ffn.up; }

const float* DecidingBias(const FFNView& ffn) {
  return ffn.HasGate() ? ffn.gate_bias : ffn.up_bias;
}

std::array<Format, 2> InputFormats(const FFNView& ffn) {
  return {DecidingMatrix(ffn).format, ffn.up.format};
}

/// Activates gate (with up unless it is null) in place and counts neurons that fire.
std::int64_t ActivateRows(ThreadTeam& team, Workspace& workspace, const Activation& activation,
                          RowsView<float> gate, const float* up) {
  const std::int64_t size = gate.rows * gate.columns;
  const std::int64_t num_chunks = (size + kActivationChunk - 1) / kActivationChunk;
  auto* counts = workspace.Get<std::int64_t>(Scratch::kCounts, num_chunks);
  const auto run = [&](std::int64_t chunk, std::int32_t) {
    const std::int64_t first = chunk * kActivationChunk;
    counts[chunk] = Activate(activation, std::min(kActivationChunk, size - first),
                             gate.data + first, up != nullptr ? up + first : nullptr);
  };
  team.ParallelFor(num_chunks, std::ref(run));
  return std::accumulate(counts, counts + num_chunks, std::int64_t{0});
}

/// gate and up for all neurons and tokens, activated: f32[num_tokens, intermediate_size].
RowsView<float> AllNeurons(ThreadTeam& team, Workspace& workspace, RowsView<const float> x,
                           const FFNView& ffn, FFNStats* stats) {
  const std::int64_t size = ffn.IntermediateSize();
  const RowsView<float> values =
      Rows(workspace.Get<float>(Scratch::kGate, x.rows * size), x.rows, size);
  float* up = ffn.HasGate() ? workspace.Get<float>(Scratch::kUp, x.rows * size) : nullptr;
  std::array<LinearItem, 2> items = {
      LinearItem{DecidingMatrix(ffn), DecidingBias(ffn), values},
      LinearItem{ffn.up, ffn.up_bias, Rows(up, x.rows, size)},
  };
  Linear(team, workspace, x, std::span(items.data(), ffn.HasGate() ? 2U : 1U));
  stats->active += ActivateRows(team, workspace, ffn.activation, values, up);
  stats->bytes_read += ffn.up.NumBytes() + (ffn.HasGate() ? ffn.gate.NumBytes() : 0);
  return values;
}

/// Transposed down over all neurons for few tokens: every row is read once and added to all tokens.
void AddAllRows(ThreadTeam& team, Workspace& workspace, RowsView<const float> values,
                const FFNView& ffn, RowsView<float> out) {
  const MatrixView& down = ffn.down;
  const NeuronGroups groups(down.rows);
  const std::int64_t group_size = values.rows * down.columns;
  auto* partials = workspace.Get<float>(Scratch::kPartials, groups.num_groups * group_size);
  const AxpyRowFn axpy_row = Kernels().axpy_row[static_cast<std::size_t>(down.format)];
  const auto run = [&](std::int64_t group, std::int32_t) {
    float* sums = partials + group * group_size;
    std::fill_n(sums, group_size, 0.0F);
    for (std::int64_t i = groups.Begin(group); i < groups.End(group); ++i) {
      for (std::int64_t token = 0; token < values.rows; ++token) {
        axpy_row(down.Row(i), down.columns, values.Row(token)[i], sums + token * down.columns);
      }
    }
  };
  team.ParallelFor(groups.num_groups, std::ref(run));
  for (std::int64_t token = 0; token < values.rows; ++token) {
    AddPartials(team, partials + token * down.columns, groups.num_groups, group_size, down.columns,
                ffn.down_bias, out.Row(token));
  }
}

void MultiplyDown(ThreadTeam& team, Workspace& workspace, RowsView<const float> values,
                  const FFNView& ffn, RowsView<float> out, FFNStats* stats) {
  stats->bytes_read += ffn.down.NumBytes();
  if (!ffn.is_down_transposed) {
    const LinearItem item{ffn.down, ffn.down_bias, out};
    Linear(team, workspace, values, std::span(&item, 1));
  } else if (values.rows < kTransposedGemmTokens) {
    AddAllRows(team, workspace, values, ffn, out);
  } else {
    BlockedTransposedLinear(team, workspace, values, ffn.down, ffn.down_bias, out);
  }
}

/// One group of listed neurons: activated values of those that fire, and their ids. Both lists are
/// written in place over [begin, begin + result).
struct ListedNeurons {
  const FFNView& ffn;
  const ActivationRow& x;
  const ActiveNeurons& neurons;
  std::int32_t* survivors;  // i32[number of listed neurons]
  float* values;            // f32[number of listed neurons]
  float* up;                // f32[number of listed neurons]

  std::int64_t Activate(std::int64_t begin, std::int64_t end, std::int64_t* bytes_read) const;

 private:
  std::int64_t TakeFiring(std::int64_t begin, std::int64_t end, std::int64_t* bytes_read) const;
};

/// Deciding values of the neurons that pass, and their ids; returns how many.
std::int64_t ListedNeurons::TakeFiring(std::int64_t begin, std::int64_t end,
                                       std::int64_t* bytes_read) const {
  const auto ids =
      neurons.ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  const auto count = static_cast<std::int64_t>(ids.size());
  float* z = values + begin;
  if (neurons.gate_values != nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      z[i] = neurons.gate_values[ids[static_cast<std::size_t>(i)]];
    }
  } else {
    const MatrixView& deciding = DecidingMatrix(ffn);
    DotListedRows(deciding, DecidingBias(ffn), x, ids, z);
    *bytes_read += count * deciding.row_bytes;
  }
  std::int32_t* kept = survivors + begin;
  if (!ffn.activation.IsSparse()) {
    std::copy(ids.begin(), ids.end(), kept);
    return count;
  }
  const std::int64_t firing = FindFiring(ffn.activation, z, count, kept);
  for (std::int64_t i = 0; i < firing; ++i) {  // places in the list become ids; places ascend
    const std::int32_t place = kept[i];
    z[i] = z[place];
    kept[i] = ids[static_cast<std::size_t>(place)];
  }
  return firing;
}

std::int64_t ListedNeurons::Activate(std::int64_t begin, std::int64_t end,
                                     std::int64_t* bytes_read) const {
  std::int64_t count = TakeFiring(begin, end, bytes_read);
  std::int32_t* kept = survivors + begin;
  float* z = values + begin;
  float* u = ffn.HasGate() ? up + begin : nullptr;
  if (u != nullptr) {
    const auto size = static_cast<std::size_t>(count);
    DotListedRows(ffn.up, ffn.up_bias, x, std::span(kept, size), u);
    *bytes_read += count * ffn.up.row_bytes;
  }
  if (u != nullptr && ffn.activation.kind == ActivationKind::kDRelu) {
    std::int64_t firing = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      kept[firing] = kept[i];
      z[firing] = z[i];
      u[firing] = u[i];
      firing += !(u[i] <= 0.0F) ? 1 : 0;
    }
    count = firing;
  }
  powerinfer::Activate(ffn.activation, count, z, u);
  return count;
}

ListedNeurons PrepareList(Workspace& workspace, const ActivationRow& x, const FFNView& ffn,
                          const ActiveNeurons& neurons) {
  const auto count = static_cast<std::int64_t>(neurons.ids.size());
  auto* values = workspace.Get<float>(Scratch::kNeuronValues, 2 * count);
  return {ffn,     x,
          neurons, workspace.Get<std::int32_t>(Scratch::kSurvivors, count),
          values,  values + count};
}

/// For a plain down: the listed neurons' values among zeros, f32[intermediate_size].
void ScatterActiveNeurons(ThreadTeam& team, Workspace& workspace, const ListedNeurons& list,
                          float* values, FFNStats* stats) {
  const NeuronGroups groups(static_cast<std::int64_t>(list.neurons.ids.size()));
  std::fill_n(values, list.ffn.IntermediateSize(), 0.0F);
  auto* counts = workspace.Get<std::int64_t>(Scratch::kCounts, 2 * groups.num_groups);
  const auto run = [&](std::int64_t group, std::int32_t) {
    const std::int64_t begin = groups.Begin(group);
    std::int64_t bytes = 0;
    const std::int64_t count = list.Activate(begin, groups.End(group), &bytes);
    for (std::int64_t i = begin; i < begin + count; ++i) values[list.survivors[i]] = list.values[i];
    counts[2 * group] = count;
    counts[2 * group + 1] = bytes;
  };
  team.ParallelFor(groups.num_groups, std::ref(run));
  for (std::int64_t group = 0; group < groups.num_groups; ++group) {
    stats->active += counts[2 * group];
    stats->bytes_read += counts[2 * group + 1];
  }
}

/// The exact path for few tokens: the deciding matrix densely, the rest where it fires.
void RunFiringNeurons(ThreadTeam& team, Workspace& workspace, RowsView<const float> x,
                      const FFNView& ffn, RowsView<float> out, FFNStats* stats) {
  const std::int64_t size = ffn.IntermediateSize();
  const ActivationRow* rows = PrepareActivations(team, workspace, x, InputFormats(ffn));
  const RowsView<float> gate =
      Rows(workspace.Get<float>(Scratch::kGate, x.rows * size), x.rows, size);
  const LinearItem item{DecidingMatrix(ffn), DecidingBias(ffn), gate};
  LinearPrepared(team, rows, x.rows, std::span(&item, 1));
  stats->bytes_read += DecidingMatrix(ffn).NumBytes();
  const std::int64_t scattered_rows = ffn.is_down_transposed ? 0 : x.rows;
  const RowsView<float> scattered =
      Rows(workspace.Get<float>(Scratch::kUp, scattered_rows * size), scattered_rows, size);
  auto* ids = workspace.Get<std::int32_t>(Scratch::kActiveIds, size);
  for (std::int64_t token = 0; token < x.rows; ++token) {
    float* values = gate.Row(token);
    const std::int64_t count = FindFiring(ffn.activation, values, size, ids);
    const ActiveNeurons neurons{std::span(ids, static_cast<std::size_t>(count)), values};
    if (ffn.is_down_transposed) {
      RunActiveNeurons(team, workspace, rows[token], ffn, neurons, out.Row(token), stats);
    } else {
      ScatterActiveNeurons(team, workspace, PrepareList(workspace, rows[token], ffn, neurons),
                           scattered.Row(token), stats);
    }
  }
  if (!ffn.is_down_transposed) {
    MultiplyDown(team, workspace, ReadOnly(scattered), ffn, out, stats);
  }
}

}  // namespace

void RunActiveNeurons(ThreadTeam& team, Workspace& workspace, const ActivationRow& x,
                      const FFNView& ffn, const ActiveNeurons& neurons, float* out,
                      FFNStats* stats) {
  const std::int64_t hidden_size = ffn.down.columns;
  const ListedNeurons list = PrepareList(workspace, x, ffn, neurons);
  const NeuronGroups groups(static_cast<std::int64_t>(neurons.ids.size()));
  auto* partials = workspace.Get<float>(Scratch::kPartials, groups.num_groups * hidden_size);
  auto* counts = workspace.Get<std::int64_t>(Scratch::kCounts, 2 * groups.num_groups);
  const auto run = [&](std::int64_t group, std::int32_t) {
    const std::int64_t begin = groups.Begin(group);
    std::int64_t bytes = 0;
    const std::int64_t count = list.Activate(begin, groups.End(group), &bytes);
    float* sums = partials + group * hidden_size;
    std::fill_n(sums, hidden_size, 0.0F);
    AddListedRows(ffn.down, std::span(list.survivors + begin, static_cast<std::size_t>(count)),
                  list.values + begin, sums);
    counts[2 * group] = count;
    counts[2 * group + 1] = bytes + count * ffn.down.row_bytes;
  };
  team.ParallelFor(groups.num_groups, std::ref(run));
  AddPartials(team, partials, groups.num_groups, hidden_size, hidden_size, ffn.down_bias, out);
  if (stats == nullptr) return;
  for (std::int64_t group = 0; group < groups.num_groups; ++group) {
    stats->active += counts[2 * group];
    stats->bytes_read += counts[2 * group + 1];
  }
}

void RunFFN(ThreadTeam& team, Workspace& workspace, RowsView<const float> x, const FFNView& ffn,
            RowsView<float> out, FFNStats* stats) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  if (x.rows == 0) return;
  stats->total += x.rows * ffn.IntermediateSize();
  if (ffn.SkipsNeurons() && x.rows < GemmTokens(InputFormats(ffn))) {
    RunFiringNeurons(team, workspace, x, ffn, out, stats);
    return;
  }
  const RowsView<float> values = AllNeurons(team, workspace, x, ffn, stats);
  MultiplyDown(team, workspace, ReadOnly(values), ffn, out, stats);
}

}  // namespace powerinfer
