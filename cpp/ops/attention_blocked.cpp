#include "ops/attention_blocked.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace powerinfer {
namespace {

// Both factors keep f32's accuracy: neither weights nor scores are quantized, so no error of their
// own would hide that of a coarser product.
constexpr GemmPrecision kPrecision = GemmPrecision::kSplit;

/// Floats that hold `count` packed numbers.
std::int64_t PackedFloats(const GemmKernel& gemm, std::int64_t count) {
  return RoundUp(count * gemm.split_bytes, 64) / std::int64_t{sizeof(float)};
}

/// Deepest product: the dimensions of a head, or the positions of a chunk.
std::int64_t MaxDepth(const GemmKernel& gemm, std::int64_t head_dim) {
  return RoundUp(std::max(head_dim, kChunkPositions), gemm.depth_multiple);
}

std::int64_t OperandFloats(const GemmKernel& gemm, std::int64_t max_queries,
                           std::int64_t head_dim) {
  const std::int64_t rows = BlockedProducts::PaddedQueries(max_queries);
  return gemm.pack_rows == nullptr ? rows * gemm.block_depth
                                   : PackedFloats(gemm, rows * MaxDepth(gemm, head_dim));
}

std::int64_t PanelFloats(const GemmKernel& gemm, std::int64_t head_dim) {
  return PackedFloats(gemm, gemm.panel_width * MaxDepth(gemm, head_dim));
}

std::int64_t WeightedStride(std::int64_t head_dim) { return RoundUp(head_dim, kMaxPanelWidth); }

/// Left operand from rows `stride` floats apart; num_rows is a multiple of the kernel's tile.
void PackOperand(const GemmKernel& gemm, const float* rows, std::int64_t stride,
                 std::int64_t num_rows, std::int64_t depth, float* operand) {
  if (gemm.pack_rows != nullptr) {
    gemm.pack_rows(rows, stride, num_rows, depth, kPrecision, operand);
    return;
  }
  for (std::int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(rows + i * stride, depth, operand + i * gemm.block_depth);
  }
}

}  // namespace

bool BlockedProducts::IsUsable(const GemmKernel& gemm, std::int64_t head_dim) {
  return gemm.multiply != nullptr && head_dim <= gemm.block_depth &&
         kChunkPositions <= gemm.block_depth && gemm.panel_width <= kMaxPanelWidth &&
         gemm.tile_rows <= kMaxTileRows;
}

std::int64_t BlockedProducts::NumFloats(const GemmKernel& gemm, std::int64_t max_queries,
                                        std::int64_t head_dim) {
  if (!IsUsable(gemm, head_dim)) return 0;
  const std::int64_t rows = PaddedQueries(max_queries);
  return RoundUp(OperandFloats(gemm, max_queries, head_dim) + PanelFloats(gemm, head_dim) +
                     rows * (RoundUp(head_dim, 16) + WeightedStride(head_dim)),
                 16);
}

BlockedProducts::BlockedProducts(const GemmKernel& gemm, float* memory, std::int64_t max_queries,
                                 std::int64_t head_dim)
    : gemm_(&gemm), head_dim_(head_dim), weighted_stride_(WeightedStride(head_dim)) {
  operand_ = memory;
  panel_ = operand_ + OperandFloats(gemm, max_queries, head_dim);
  unpacked_ = panel_ + PanelFloats(gemm, head_dim);
  weighted_ = unpacked_ + PaddedQueries(max_queries) * RoundUp(head_dim, 16);
}

void BlockedProducts::SetQueries(const ActivationRow* queries, std::int64_t num_queries) const {
  const std::int64_t padded = RoundUp(num_queries, gemm_->tile_rows);
  for (std::int64_t i = 0; i < num_queries; ++i) {
    std::copy_n(queries[i].values, head_dim_, unpacked_ + i * head_dim_);
  }
  std::fill_n(unpacked_ + num_queries * head_dim_, (padded - num_queries) * head_dim_, 0.0F);
  PackOperand(*gemm_, unpacked_, head_dim_, padded, head_dim_, operand_);
}

void BlockedProducts::Score(const float* keys, std::int64_t num_keys, std::int64_t num_queries,
                            float* scores) const {
  const GemmKernel& gemm = *gemm_;
  const std::int64_t padded = RoundUp(num_queries, gemm.tile_rows);
  for (std::int64_t j = 0; j < num_keys; j += gemm.panel_width) {
    const std::int64_t columns = std::min(gemm.panel_width, num_keys - j);
    gemm.pack_panel_transposed(keys + j * head_dim_, head_dim_, head_dim_, columns, kPrecision,
                               panel_);
    gemm.multiply(operand_, padded, panel_, head_dim_, columns, kPrecision, false, scores + j,
                  kScoreStride);
  }
}

void BlockedProducts::WeighValues(const float* weights, std::int64_t num_queries,
                                  const float* values, std::int64_t num_values) const {
  const GemmKernel& gemm = *gemm_;
  const std::int64_t padded = RoundUp(num_queries, gemm.tile_rows);
  PackOperand(gemm, weights, kScoreStride, padded, num_values, operand_);
  for (std::int64_t i = 0; i < head_dim_; i += gemm.panel_width) {
    const std::int64_t columns = std::min(gemm.panel_width, head_dim_ - i);
    gemm.pack_panel(values + i, head_dim_, num_values, columns, kPrecision, panel_);
    gemm.multiply(operand_, padded, panel_, num_values, columns, kPrecision, false, weighted_ + i,
                  weighted_stride_);
  }
}

}  // namespace powerinfer
