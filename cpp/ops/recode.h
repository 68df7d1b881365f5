// Copies of weight matrices in other formats, made at load for predictors.
#pragma once

#include <cstdint>

#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// True if Recode has an encoder for the format.
bool CanRecode(const KernelTable& kernels, Format target);

/// The copy that Recode would make, without data: rows padded with zeros to whole blocks, so that
/// `columns` may be more than the source's; Q4_0 rows of whole superblocks become superblocks.
MatrixView RecodedShape(const MatrixView& source, Format target);

/// Fills `data` (copy.NumBytes() bytes) with the rows of `source` in the format and shape of
/// `copy`, which RecodedShape gave. Bytes are those of the numpy encoders of quant/formats,
/// whatever the number of threads; if the format stays, they are copied. Returns -1, or the first
/// row with a number that the format cannot hold (NaN, infinity, beyond its scale); rows after it
/// may be unfinished then.
std::int64_t Recode(const OpContext& context, const MatrixView& source, const MatrixView& copy,
                    std::uint8_t* data);

/// The loss of a copy on inputs of known mean and variance, for every row i:
/// offset[i] = row_i . mean; noise[i] = sqrt(sum_j (row_ij - copy_ij)^2 variance_j), at least
/// 1e-30. For `sign`, whose input is binarised too, (1 - 2 / pi) copy_ij^2 variance_j joins the
/// sum: the part of a normal variable's variance that its sign does not explain. copy: same rows,
/// at least as many columns, of which those beyond the matrix are ignored. mean, variance:
/// f32[matrix.columns]; offset, noise: f32[matrix.rows].
void CopyStatistics(const OpContext& context, const MatrixView& matrix, const MatrixView& copy,
                    const float* mean, const float* variance, float* offset, float* noise);

}  // namespace powerinfer
