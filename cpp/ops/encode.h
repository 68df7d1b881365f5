// Rows of weights to the formats of files.
#pragma once

#include <cstdint>

#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// The loss of rows: sums over all their numbers, in one order whatever the number of threads.
struct EncodingLoss {
  double squared_error = 0.0;  ///< of decoded - given
  double squared_sum = 0.0;    ///< of the given numbers
};

/// Writes the rows of `source` in the format `target` to out: u8[rows, RowBytes(target, columns)].
/// Bytes are those of quant/formats, whatever the number of threads. importance: f32[columns], at
/// least 0, the weight of a column's squared error; null for equal weights. Formats that choose
/// nothing ignore it. Returns -1, or the first row with a number that the format cannot hold; rows
/// after it may be unfinished then.
std::int64_t EncodeRows(const OpContext& context, const MatrixView& source, Format target,
                        const float* importance, std::uint8_t* out, EncodingLoss* loss);

}  // namespace powerinfer
