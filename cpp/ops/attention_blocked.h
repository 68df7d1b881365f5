// Attention's two matrix products for many queries, on the blocked product kernel (kernels/gemm.h).
#pragma once

#include <cstdint>

#include "base/rounding.h"
#include "kernels/kernel_table.h"

namespace powerinfer {

/// Positions per partial softmax. Fixed, because results depend on it in their last bits: enough
/// rows to repay the merge, few enough that one long sequence occupies every thread.
inline constexpr std::int64_t kChunkPositions = 256;
/// Widest panel that a kernel may have to be used here.
inline constexpr std::int64_t kMaxPanelWidth = 64;
/// Tallest register tile that a kernel may have to be used here.
inline constexpr std::int64_t kMaxTileRows = 64;
/// Floats from one query's scores to the next: a kernel may write a whole panel past the last one.
inline constexpr std::int64_t kScoreStride = kChunkPositions + kMaxPanelWidth;

/// Packed operands of one thread for one product kernel. Views memory that others own.
class BlockedProducts {
 public:
  /// True if the kernel takes heads of this size.
  static bool IsUsable(const GemmKernel& gemm, std::int64_t head_dim);
  /// Room for queries rounded up to whole tiles of any kernel.
  static std::int64_t PaddedQueries(std::int64_t num_queries) {
    return RoundUp(num_queries + kMaxTileRows, 16);
  }
  static std::int64_t NumFloats(const GemmKernel& gemm, std::int64_t max_queries,
                                std::int64_t head_dim);

  BlockedProducts() = default;
  /// The kernel must outlive this. memory: NumFloats() floats aligned to 64 bytes.
  BlockedProducts(const GemmKernel& gemm, float* memory, std::int64_t max_queries,
                  std::int64_t head_dim);

  /// Packs queries f32[num_queries][head_dim].
  void SetQueries(const ActivationRow* queries, std::int64_t num_queries) const;
  /// scores[i * kScoreStride + j] = query i . key j. keys: f32[num_keys, head_dim].
  void Score(const float* keys, std::int64_t num_keys, std::int64_t num_queries,
             float* scores) const;
  /// Weighted(i) = sum over j of weights[i * kScoreStride + j] * values[j]; values as keys.
  void WeighValues(const float* weights, std::int64_t num_queries, const float* values,
                   std::int64_t num_values) const;
  /// f32[head_dim] of query i, after WeighValues.
  const float* Weighted(std::int64_t query) const { return weighted_ + query * weighted_stride_; }

 private:
  const GemmKernel* gemm_ = nullptr;
  std::int64_t head_dim_ = 0;
  std::int64_t weighted_stride_ = 0;
  float* operand_ = nullptr;   // f32[padded queries, block_depth]: rows of the left operand
  float* panel_ = nullptr;     // one packed panel of keys or values
  float* unpacked_ = nullptr;  // f32[padded queries, head_dim]: queries before packing
  float* weighted_ = nullptr;  // f32[padded queries, weighted_stride_]
};

}  // namespace powerinfer
