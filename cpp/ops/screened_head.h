// The output head for a choice among the largest logits: a copy in fewer bits shows which rows may
// be among them, and only these are computed.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// A copy of a head [rows, columns] and bounds of its errors. Some columns, whose inputs are large,
/// are in it twice: their numbers first, and at the end what these lack. Others are in between.
struct HeadCopy {
  MatrixView matrix;
  std::span<const std::int32_t> columns;  ///< column of the head, for each of the copy
  RowsView<const float> norms;  ///< f32[2, rows]: of the error of single columns; of the whole row
  float double_error = 0.0F;    ///< most error of a row's double columns, in units of its norm
};

/// Which logits of a token are wanted: all that may be among the `count` largest or, with a margin,
/// at most that much smaller.
struct WantedLogits {
  std::int64_t count = 0;
  float margin = 0.0F;
};

/// What stands for logits that nobody wants. Finite, so that damaged weights still show.
inline constexpr float kUnwantedLogit = std::numeric_limits<float>::lowest();

/// item.out[t, i] = the logit with the bits of Linear for decode rows, if token t may want it, else
/// kUnwantedLogit. Returns the number of logits computed. By Cauchy and Schwarz, with x and x~ for
/// what the int8 forms of head and copy make of the input:
/// |head . x - copy . x~| <= |head - copy| |x~| + |head| |x - x~|, the first term for double and
/// single columns apart. A row is skipped if even so it stays below what `count` computed logits
/// reach; a NaN skips nothing. Bound by the bytes of the copy.
std::int64_t ScreenedHead(const OpContext& context, RowsView<const float> x, const LinearItem& item,
                          const HeadCopy& copy, std::span<const WantedLogits> wanted);

}  // namespace powerinfer
