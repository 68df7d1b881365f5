#include "sparse/prefill.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>

#include "ops/blocked_product.h"
#include "ops/blocking.h"
#include "sparse/prefill_pairs.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

// Skipping must promise to take less than this of dense up and down: promises are rough.
constexpr double kWorthwhileCost = 0.85;

RowsView<float> GetRows(Workspace& workspace, Scratch slot, std::int64_t rows,
                        std::int64_t columns) {
  return Rows(workspace.Get<float>(slot, rows * columns), rows, columns);
}

/// The cost of up and of a transposed down, whichever of them skips.
PairCost CostOf(const GemmKernel& gemm, const FFNView& ffn) {
  const auto listed = [&gemm](Format format) -> const ListedCost& {
    return PrecisionFor(format) == GemmPrecision::kSplit ? gemm.listed_float : gemm.listed_block;
  };
  const ListedCost& up = listed(ffn.up.format);
  ListedCost down = listed(ffn.down.format);
  // up, too, decides: about half of it fires, whatever its gate.
  if (ffn.activation.kind == ActivationKind::kDRelu && ffn.HasGate()) down.add /= 2.0;
  if (!ffn.HasGate()) return {down.add, down.row, down.token};
  if (!ffn.is_down_transposed) return {up.dot, up.row, up.token};
  return {(up.dot + down.add) / 2.0, (up.row + down.row) / 2.0, (up.token + down.token) / 2.0};
}

/// One block of tokens on its way through the operation.
class Block {
 public:
  Block(const OpContext& context, RowsView<const float> x, const FFNView& ffn)
      : context_(context), x_(x), ffn_(ffn) {}

  /// Finds the pairs that fire.
  void Decide(const NeuronIds* mask, FFNStats* stats);
  /// Whether Skip is expected to be faster than Dense.
  bool IsWorthSkipping() const;
  void Skip(RowsView<float> out, FFNStats* stats);
  void Dense(bool is_masked, RowsView<float> out, FFNStats* stats);

 private:
  bool SkipsDown() const { return ffn_.is_down_transposed; }
  RowsView<float> OftenUp();
  std::int64_t ActivateToken(std::int64_t token, RowsView<float> often, float* values);
  void StorePairs(std::int64_t token, const float* values, RowsView<float> often);
  void ClearOthers(std::int64_t token);
  void MultiplyOften(RowsView<const float> often, RowsView<float> out);
  void MultiplyDown(RowsView<float> values, RowsView<float> out);

  const OpContext& context_;
  RowsView<const float> x_;
  const FFNView& ffn_;
  RowsView<float> gate_;  // f32[num_tokens, intermediate_size]
  float* up_ = nullptr;   // f32[num_tokens, intermediate_size]: of pairs, then their values
  FiringPairs pairs_;
  NeuronSplit split_;
};

void Block::Decide(const NeuronIds* mask, FFNStats* stats) {
  const std::int64_t size = ffn_.IntermediateSize();
  gate_ = GetRows(context_.workspace, Scratch::kGate, x_.rows, size);
  const LinearItem item{ffn_.DecidingMatrix(), ffn_.DecidingBias(), gate_};
  Linear(context_, x_, std::span(&item, 1));
  pairs_ = FindPairs(context_, ffn_.activation, ReadOnly(gate_), mask);
  split_ = SplitNeurons(pairs_, CostOf(context_.kernels.gemm, ffn_));
  stats->total += x_.rows * size;
  stats->predicted += mask != nullptr ? mask->offsets[x_.rows] - mask->offsets[0] : x_.rows * size;
  stats->bytes_read += ffn_.DecidingMatrix().NumBytes();
}

bool Block::IsWorthSkipping() const {
  const bool can_skip = ffn_.HasGate() || SkipsDown();
  return can_skip && split_.cost < kWorthwhileCost;
}

/// up of the neurons that fire often, for all tokens: f32[num_tokens, split.often.size()].
RowsView<float> Block::OftenUp() {
  const auto count = static_cast<std::int64_t>(split_.often.size());
  const RowsView<float> often = GetRows(context_.workspace, Scratch::kUp, x_.rows, count);
  if (!ffn_.HasGate() || count == 0) return often;
  float* bias = nullptr;
  if (ffn_.up_bias != nullptr) {
    bias = context_.workspace.Get<float>(Scratch::kPartials, count);
    for (std::int64_t i = 0; i < count; ++i) {
      bias[i] = ffn_.up_bias[split_.often[static_cast<std::size_t>(i)]];
    }
  }
  const LinearItem item{ffn_.up, bias, often, split_.often.data()};
  BlockedLinear(context_, x_, std::span(&item, 1));
  return often;
}

/// The token's pairs activated, in the order of its list; returns how many fired.
std::int64_t Block::ActivateToken(std::int64_t token, RowsView<float> often, float* values) {
  const std::int64_t count = pairs_.counts[token];
  const std::int32_t* ids = pairs_.Ids(token);
  const float* gate = gate_.Row(token);
  for (std::int64_t i = 0; i < count; ++i) values[i] = gate[ids[i]];
  if (!ffn_.HasGate()) {
    Activate(context_.kernels, ffn_.activation, count, values, nullptr);
    return count;
  }
  float* up = up_ + token * pairs_.num_neurons;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t place = split_.places[ids[i]];
    if (place >= 0) up[i] = often.Row(token)[place];
  }
  Activate(context_.kernels, ffn_.activation, count, values, up);
  if (ffn_.activation.kind != ActivationKind::kDRelu) return count;
  std::int64_t firing = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool fires = !(up[i] <= 0.0F);
    if (!fires) values[i] = 0.0F;  // infinity times zero is not
    firing += fires ? 1 : 0;
  }
  return firing;
}

/// Hands a token's values to what multiplies down: rows of `often` and lists of pairs, or whole
/// rows (in gate) for a down that is not transposed.
void Block::StorePairs(std::int64_t token, const float* values, RowsView<float> often) {
  const std::int64_t count = pairs_.counts[token];
  std::int32_t* ids = pairs_.Ids(token);
  if (!SkipsDown()) {
    std::fill_n(gate_.Row(token), gate_.columns, 0.0F);
    for (std::int64_t i = 0; i < count; ++i) gate_.Row(token)[ids[i]] = values[i];
    return;
  }
  std::fill_n(often.Row(token), often.columns, 0.0F);
  float* kept = up_ + token * pairs_.num_neurons;
  std::int64_t num_kept = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t place = split_.places[ids[i]];
    if (place >= 0) {
      often.Row(token)[place] = values[i];
    } else {
      ids[num_kept] = -1 - place;
      kept[num_kept] = values[i];
      num_kept += values[i] != 0.0F ? 1 : 0;
    }
  }
  pairs_.counts[token] = num_kept;
}

void Block::Skip(RowsView<float> out, FFNStats* stats) {
  const std::int64_t size = pairs_.num_neurons;
  up_ = context_.workspace.Nested().Get<float>(Scratch::kUp, x_.rows * size);
  const RowsView<float> often = OftenUp();
  if (ffn_.HasGate()) {
    MultiplyPairs(context_, x_, ffn_.up, ffn_.up_bias, pairs_, split_, up_);
  }
  auto* values =
      context_.workspace.Get<float>(Scratch::kThreadBlocks, size * context_.team.NumThreads());
  auto* active = context_.workspace.Get<std::int64_t>(Scratch::kCounts, x_.rows);
  const auto activate = [&](std::int64_t token, std::int32_t thread) {
    active[token] = ActivateToken(token, often, values + thread * size);
    StorePairs(token, values + thread * size, often);
  };
  context_.team.ParallelFor(x_.rows, std::ref(activate));
  stats->active += std::accumulate(active, active + x_.rows, std::int64_t{0});
  const auto num_rows = static_cast<std::int64_t>(split_.often.size() + split_.rarely.size());
  if (ffn_.HasGate()) stats->bytes_read += num_rows * ffn_.up.row_bytes;
  if (!SkipsDown()) {
    MultiplyDown(gate_, out);
    stats->bytes_read += ffn_.down.NumBytes();
    return;
  }
  MultiplyOften(ReadOnly(often), out);
  AddPairs(context_, ffn_.down, {size, pairs_.ids, up_, pairs_.counts}, split_, out);
  stats->bytes_read += num_rows * ffn_.down.row_bytes;
}

void Block::MultiplyOften(RowsView<const float> often, RowsView<float> out) {
  if (often.columns > 0) {
    BlockedTransposedLinear(context_, often, ffn_.down, ffn_.down_bias, out, split_.often.data());
    return;
  }
  for (std::int64_t token = 0; token < out.rows; ++token) {
    if (ffn_.down_bias != nullptr) {
      std::copy_n(ffn_.down_bias, out.columns, out.Row(token));
    } else {
      std::fill_n(out.Row(token), out.columns, 0.0F);
    }
  }
}

void Block::MultiplyDown(RowsView<float> values, RowsView<float> out) {
  if (ffn_.is_down_transposed) {
    BlockedTransposedLinear(context_, ReadOnly(values), ffn_.down, ffn_.down_bias, out);
  } else {
    const LinearItem item{ffn_.down, ffn_.down_bias, out};
    Linear(context_, ReadOnly(values), std::span(&item, 1));
  }
}

/// Zeros for what is not among a token's pairs; every activation makes zero of them.
void Block::ClearOthers(std::int64_t token) {
  float* gate = gate_.Row(token);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < pairs_.counts[token]; ++i) {
    const std::int64_t id = pairs_.Ids(token)[i];
    std::fill(gate + begin, gate + id, 0.0F);
    begin = id + 1;
  }
  std::fill(gate + begin, gate + gate_.columns, 0.0F);
}

void Block::Dense(bool is_masked, RowsView<float> out, FFNStats* stats) {
  const std::int64_t size = ffn_.IntermediateSize();
  RowsView<float> up;
  if (ffn_.HasGate()) {
    up = GetRows(context_.workspace, Scratch::kUp, x_.rows, size);
    const LinearItem item{ffn_.up, ffn_.up_bias, up};
    Linear(context_, x_, std::span(&item, 1));
    stats->bytes_read += ffn_.up.NumBytes();
  }
  const bool counts_up = ffn_.HasGate() && ffn_.activation.kind == ActivationKind::kDRelu;
  auto* active = context_.workspace.Get<std::int64_t>(Scratch::kCounts, x_.rows);
  const auto activate = [&](std::int64_t token, std::int32_t) {
    float* gate = gate_.Row(token);
    if (is_masked) ClearOthers(token);
    const float* u = ffn_.HasGate() ? up.Row(token) : nullptr;
    const std::int64_t firing = Activate(context_.kernels, ffn_.activation, size, gate, u);
    active[token] = counts_up ? firing : pairs_.counts[token];
  };
  context_.team.ParallelFor(x_.rows, std::ref(activate));
  stats->active += std::accumulate(active, active + x_.rows, std::int64_t{0});
  MultiplyDown(gate_, out);
  stats->bytes_read += ffn_.down.NumBytes();
}

}  // namespace

void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats, PrefillPath path) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t count = std::min(kMaxBlockTokens, x.rows - token);
    const RowsView<float> result{out.Row(token), count, out.columns, out.stride};
    NeuronIds listed;
    if (mask != nullptr) listed = mask->Tokens(token, count);
    Block block(context, {x.Row(token), count, x.columns, x.stride}, ffn);
    block.Decide(mask != nullptr ? &listed : nullptr, stats);
    if (path == PrefillPath::kSkip || (path == PrefillPath::kFaster && block.IsWorthSkipping())) {
      block.Skip(result, stats);
    } else {
      block.Dense(mask != nullptr, result, stats);
    }
  }
}

}  // namespace powerinfer
