#include "sparse/prefill.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "ops/blocked_product.h"
#include "sparse/prefill_pairs.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

using Tokens = std::vector<std::int32_t>;

RowsView<float> GetRows(Workspace& workspace, Scratch slot, std::int64_t rows,
                        std::int64_t columns) {
  return Rows(workspace.Get<float>(slot, rows * columns), rows, columns);
}

/// Calls product(rows of x, rows of out) for some tokens, which are copied together unless they are
/// all. The product of a token must not depend on the others.
template <typename Product>
void ForTokens(const OpContext& context, RowsView<const float> x, const Tokens& tokens,
               RowsView<float> out, const Product& product) {
  if (tokens.empty()) return;
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == x.rows) return product(x, out);
  Workspace& copies = context.workspace.Nested();
  const RowsView<float> in = GetRows(copies, Scratch::kPackedInput, count, x.columns);
  const RowsView<float> results = GetRows(copies, Scratch::kPartials, count, out.columns);
  const auto gather = [&](std::int64_t i, std::int32_t) {
    std::copy_n(x.Row(tokens[static_cast<std::size_t>(i)]), x.columns, in.Row(i));
  };
  const auto scatter = [&](std::int64_t i, std::int32_t) {
    std::copy_n(results.Row(i), out.columns, out.Row(tokens[static_cast<std::size_t>(i)]));
  };
  context.team.ParallelFor(count, std::ref(gather));
  product(ReadOnly(in), results);
  context.team.ParallelFor(count, std::ref(scatter));
}

void MultiplyTokens(const OpContext& context, RowsView<const float> x, const Tokens& tokens,
                    const MatrixView& matrix, const float* bias, RowsView<float> out) {
  ForTokens(context, x, tokens, out, [&](RowsView<const float> in, RowsView<float> result) {
    const LinearItem item{matrix, bias, result};
    Linear(context, in, std::span(&item, 1));
  });
}

void ForEach(const OpContext& context, const Tokens& tokens,
             const std::function<void(std::int32_t token)>& body) {
  const auto run = [&](std::int64_t i, std::int32_t) { body(tokens[static_cast<std::size_t>(i)]); };
  context.team.ParallelFor(static_cast<std::int64_t>(tokens.size()), std::ref(run));
}

/// One block of tokens on its way through the operation. A token's neurons are a row of values:
/// those of its pairs one after the other if it skips, else all.
class Block {
 public:
  Block(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
        const NeuronIds* mask, const FiredBits& fired)
      : context_(context),
        x_(x),
        ffn_(ffn),
        mask_(mask),
        fired_(fired),
        values_(GetRows(context.workspace, Scratch::kGate, x.rows, ffn.IntermediateSize())) {
    Workspace& lists = context.workspace.Nested();
    pairs_ = {x.rows, values_.columns,
              lists.Get<std::int32_t>(Scratch::kActiveIds, x.rows * values_.columns), values_.data,
              lists.Get<std::int64_t>(Scratch::kCounts, 2 * x.rows)};
    active_ = pairs_.counts + x.rows;
  }

  void Run(const SkipShares& shares, RowsView<float> out, FFNStats* stats);

 private:
  bool SkipsDown() const { return ffn_.is_down_transposed; }
  void FindNeededRows() { needed_ = FindNeeded(context_.Nested(), pairs_); }
  std::int64_t Most(double share) const;
  std::int64_t BytesRead(const MatrixView& matrix, const Tokens& dense) const;
  Tokens DecideListed(std::int64_t most, FFNStats* stats);
  void DecideWhole(const Tokens& whole, std::int64_t most);
  std::int64_t ClearOthers(std::int32_t token);
  void MultiplyUp(FFNStats* stats);
  void ActivateSkipping(std::int32_t token);
  void ActivateDense(std::int32_t token);
  void Spread(std::int32_t token);
  void DropZeros(std::int32_t token);
  void MultiplyDown(RowsView<float> out, FFNStats* stats);

  const OpContext& context_;
  RowsView<const float> x_;
  const FFNView& ffn_;
  const NeuronIds* mask_;
  const FiredBits fired_;
  RowsView<float> values_;  // f32[num_tokens, intermediate_size]: gate, then activated
  RowsView<float> up_;      // as values_; without rows if there is no gate
  TokenPairs pairs_;        // of the tokens that skip
  NeededRows needed_;       // by the pairs
  std::int64_t* active_;    // i64[num_tokens]
  Tokens skipping_, dense_;
};

std::int64_t Block::Most(double share) const {
  return static_cast<std::int64_t>(share * static_cast<double>(values_.columns));
}

std::int64_t Block::BytesRead(const MatrixView& matrix, const Tokens& dense) const {
  return dense.empty() ? needed_.Count() * matrix.row_bytes : matrix.NumBytes();
}

/// The pairs of tokens with at most `most` listed neurons; returns the other tokens.
Tokens Block::DecideListed(std::int64_t most, FFNStats* stats) {
  Tokens whole;
  std::fill_n(pairs_.counts, x_.rows, 0);
  for (std::int32_t token = 0; token < x_.rows; ++token) {
    const bool is_listed = mask_ != nullptr && std::ssize(mask_->Of(token)) <= most;
    (is_listed ? skipping_ : whole).push_back(token);
    if (!is_listed) continue;
    const std::span<const std::int32_t> listed = mask_->Of(token);
    std::copy(listed.begin(), listed.end(), pairs_.Ids(token));
    pairs_.counts[token] = std::ssize(listed);
  }
  FindNeededRows();
  MultiplyPairs(context_, x_, ffn_.DecidingMatrix(), ffn_.DecidingBias(), pairs_, needed_,
                pairs_.values);
  VisitFires(ffn_.activation, [&](const auto& fires) {
    ForEach(context_, skipping_, [&](std::int32_t token) { KeepPairs(pairs_, token, fires); });
  });
  stats->bytes_read += BytesRead(ffn_.DecidingMatrix(), whole);
  return whole;
}

/// The whole deciding matrix for some tokens, which skip if at most `most` neurons fire.
void Block::DecideWhole(const Tokens& whole, std::int64_t most) {
  MultiplyTokens(context_, x_, whole, ffn_.DecidingMatrix(), ffn_.DecidingBias(), values_);
  ForEach(context_, whole, [&](std::int32_t token) {
    std::int32_t* ids = pairs_.Ids(token);
    float* values = pairs_.Values(token);
    const std::int64_t count =
        FindFiring(context_.kernels, ffn_.activation, values, values_.columns, mask_, token, ids);
    pairs_.counts[token] = count;
    for (std::int64_t i = 0; i < count && count <= most; ++i) {
      values[i] = values[ids[i]];  // ids[i] >= i
    }
  });
  for (const std::int32_t token : whole) {
    const bool skips = pairs_.counts[token] <= most;
    (skips ? skipping_ : dense_).push_back(token);
    active_[token] = pairs_.counts[token];
    if (!skips) pairs_.counts[token] = 0;
  }
}

/// Sets the values of a dense token's neurons that do not fire to zero, after the activation: zero
/// times an infinite up would be NaN. Returns how many are not zero.
std::int64_t Block::ClearOthers(std::int32_t token) {
  float* values = values_.Row(token);
  std::int64_t begin = 0;
  std::int64_t num_left = 0;
  for (std::int64_t i = 0; i < active_[token]; ++i) {
    const std::int64_t id = pairs_.Ids(token)[i];
    std::fill(values + begin, values + id, 0.0F);
    num_left += values[id] != 0.0F ? 1 : 0;
    begin = id + 1;
  }
  std::fill(values + begin, values + values_.columns, 0.0F);
  return num_left;
}

void Block::MultiplyUp(FFNStats* stats) {
  if (!ffn_.HasGate()) return;
  up_ = GetRows(context_.workspace, Scratch::kUp, x_.rows, values_.columns);
  MultiplyPairs(context_, x_, ffn_.up, ffn_.up_bias, pairs_, needed_, up_.data);
  MultiplyTokens(context_, x_, dense_, ffn_.up, ffn_.up_bias, up_);
  stats->bytes_read += BytesRead(ffn_.up, dense_);
}

void Block::ActivateSkipping(std::int32_t token) {
  const std::int64_t count = pairs_.counts[token];
  float* values = pairs_.Values(token);
  const float* up = ffn_.HasGate() ? up_.Row(token) : nullptr;
  Activate(context_.kernels, ffn_.activation, count, values, up);
  active_[token] = count;
  if (up != nullptr && ffn_.activation.kind == ActivationKind::kDRelu) {
    for (std::int64_t i = 0; i < count; ++i) {
      const bool fires = !(up[i] <= 0.0F);
      if (!fires) values[i] = 0.0F;  // infinity times zero is not
      active_[token] -= fires ? 0 : 1;
    }
  }
  if (fired_.IsWanted()) fired_.SetListed(token, pairs_.Ids(token), values, count);
}

void Block::ActivateDense(std::int32_t token) {
  const float* up = ffn_.HasGate() ? up_.Row(token) : nullptr;
  std::int64_t firing =
      Activate(context_.kernels, ffn_.activation, values_.columns, values_.Row(token), up);
  if (mask_ != nullptr) firing = ClearOthers(token);
  if (up != nullptr && ffn_.activation.kind == ActivationKind::kDRelu) active_[token] = firing;
  if (fired_.IsWanted()) fired_.Set(token, values_.Row(token), values_.columns);
}

/// Moves the values of a token that skips to the places that those of a dense one have.
void Block::Spread(std::int32_t token) {
  float* values = pairs_.Values(token);
  std::int64_t end = values_.columns;
  for (std::int64_t i = pairs_.counts[token] - 1; i >= 0; --i) {
    const std::int64_t id = pairs_.Ids(token)[i];  // >= i
    const float value = values[i];
    std::fill(values + id + 1, values + end, 0.0F);
    values[id] = value;
    end = id;
  }
  std::fill(values, values + end, 0.0F);
}

/// Keeps the pairs with a value, by the place of their row.
void Block::DropZeros(std::int32_t token) {
  std::int32_t* ids = pairs_.Ids(token);
  float* values = pairs_.Values(token);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < pairs_.counts[token]; ++i) {
    const float value = values[i];
    ids[count] = needed_.places[ids[i]];
    values[count] = value;
    count += value != 0.0F ? 1 : 0;
  }
  pairs_.counts[token] = count;
}

void Block::MultiplyDown(RowsView<float> out, FFNStats* stats) {
  if (!SkipsDown()) {
    ForEach(context_, skipping_, [&](std::int32_t token) { Spread(token); });
    const LinearItem item{ffn_.down, ffn_.down_bias, out};
    Linear(context_, ReadOnly(values_), std::span(&item, 1));
    stats->bytes_read += ffn_.down.NumBytes();
    return;
  }
  ForEach(context_, skipping_, [&](std::int32_t token) { DropZeros(token); });
  if (!skipping_.empty()) {
    AddPairs(context_, ffn_.down, ffn_.down_bias, pairs_, needed_, skipping_, out);
  }
  ForTokens(context_, ReadOnly(values_), dense_, out,
            [&](RowsView<const float> in, RowsView<float> result) {
              BlockedTransposedLinear(context_, in, ffn_.down, ffn_.down_bias, result);
            });
  stats->bytes_read += BytesRead(ffn_.down, dense_);
}

void Block::Run(const SkipShares& shares, RowsView<float> out, FFNStats* stats) {
  const std::int64_t all = x_.rows * values_.columns;
  stats->total += all;
  stats->predicted += mask_ != nullptr ? mask_->offsets[x_.rows] - mask_->offsets[0] : all;
  const Tokens whole = DecideListed(Most(shares.listed), stats);
  DecideWhole(whole, Most(shares.firing));
  FindNeededRows();
  MultiplyUp(stats);
  ForEach(context_, skipping_, [&](std::int32_t token) { ActivateSkipping(token); });
  ForEach(context_, dense_, [&](std::int32_t token) { ActivateDense(token); });
  stats->active += std::accumulate(active_, active_ + x_.rows, std::int64_t{0});
  MultiplyDown(out, stats);
}

}  // namespace

void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats,
                   const FiredBits& fired) {
  RunPrefillFFN(context, x, ffn, mask, out, stats, SharesFor(context.kernels, ffn), fired);
}

void RunPrefillFFN(const OpContext& context, RowsView<const float> x, const FFNView& ffn,
                   const NeuronIds* mask, RowsView<float> out, FFNStats* stats,
                   const SkipShares& shares, const FiredBits& fired) {
  FFNStats ignored;
  if (stats == nullptr) stats = &ignored;
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t count = std::min(kMaxBlockTokens, x.rows - token);
    NeuronIds listed;
    if (mask != nullptr) listed = mask->Tokens(token, count);
    Block block(context, x.Some(token, count), ffn, mask != nullptr ? &listed : nullptr,
                fired.From(token));
    block.Run(shares, out.Some(token, count), stats);
  }
}

}  // namespace powerinfer
