// Products of prompt rows with weights that are not multiplied in int8: dequantized block by block,
// multiplied by the kernels of gemm.h.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// Tokens multiplied at once. Weights are read and dequantized again for every such block, so it is
/// large; the sums of a block of rows must stay in the second-level cache, so it has an end.
inline constexpr std::int64_t kMaxBlockTokens = 512;

/// Linear for prompt rows of items that share a kernel (KernelTable::GemmFor); see linear.h.
void BlockedLinear(const OpContext& context, RowsView<const float> x,
                   std::span<const LinearItem> items);

/// out[t, c] = sum over i of x[t, i] * matrix[i, c] (+ bias[c]): matrix rows are the inputs.
/// x: f32[num_tokens, matrix.rows], out: f32[num_tokens, matrix.columns], bias may be null.
void BlockedTransposedLinear(const OpContext& context, RowsView<const float> x,
                             const MatrixView& matrix, const float* bias, RowsView<float> out);

}  // namespace powerinfer
