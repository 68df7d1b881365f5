// The blocks of a product of prompt rows, in both of its orientations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/rounding.h"
#include "kernels/gemm.h"
#include "kernels/kernel_table.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// Chunks per thread that dynamic hand-out needs for balance.
inline constexpr std::int64_t kChunksPerThread = 4;

/// Block formats multiply in single bfloat16: at 4096 columns its error is 0.24 % of the result
/// (root mean square, Q4_0), that of the dot kernels' int8 activations 0.53 %. Formats without
/// blocks have exact dot products, so they split.
inline GemmPrecision PrecisionFor(Format format) {
  return InfoOf(format).block_size > 1 ? GemmPrecision::kSingle : GemmPrecision::kSplit;
}

/// The kernels and the sizes derived from them.
struct Blocking {
  const KernelTable& kernels;
  const GemmKernel& kernel;
  GemmPrecision precision = GemmPrecision::kSplit;
  std::int64_t depth = 0;

  std::int64_t ElementBytes() const {
    return precision == GemmPrecision::kSplit ? kernel.split_bytes : kernel.single_bytes;
  }
  std::int64_t NumBlocks() const { return DivideUp(depth, kernel.block_depth); }
  std::int64_t BlockDepth(std::int64_t block) const {
    return std::min(kernel.block_depth, depth - block * kernel.block_depth);
  }
  std::int64_t PaddedDepth(std::int64_t depth_of_block) const {
    return RoundUp(depth_of_block, kernel.depth_multiple);
  }
  /// Bytes before depth block `block` in an operand of `width` rows or columns.
  std::int64_t BlockOffset(std::int64_t block, std::int64_t width) const {
    return block * kernel.block_depth * width * ElementBytes();
  }
  std::int64_t OperandBytes(std::int64_t width) const {
    return PaddedDepth(depth) * width * ElementBytes();
  }
};

/// Some rows of a matrix: rows ids[0] to ids[count - 1], or the first `count` if ids is null.
struct RowSelection {
  const std::int32_t* ids = nullptr;
  std::int64_t count = 0;

  std::int64_t operator[](std::int64_t i) const { return ids != nullptr ? ids[i] : i; }
};

/// Prefetches the cache lines of weights (row, column + j), j in [0, count). Blocks are short
/// pieces of many rows, which no hardware prefetcher follows.
void PrefetchPiece(const MatrixView& matrix, std::int64_t row, std::int64_t column,
                   std::int64_t count);

/// out[j] = weight (row, column + j) of the matrix for j in [0, count).
void DequantizeFetched(const KernelTable& kernels, const MatrixView& matrix, std::int64_t row,
                       std::int64_t column, std::int64_t count, float* out);

/// The same for rows[i] while the piece of a later row is fetched.
void DequantizePiece(const KernelTable& kernels, const MatrixView& matrix, const RowSelection& rows,
                     std::int64_t i, std::int64_t column, std::int64_t count, float* out);

/// Linear for up to few_rows / 2 tokens, at most kMaxFewTokens, on kernels that have multiply_few;
/// the bits are those of BlockedLinear.
void FewTokensLinear(const OpContext& context, const Blocking& blocking, RowsView<const float> x,
                     std::span<const LinearItem> items);

}  // namespace powerinfer
