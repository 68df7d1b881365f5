// Products of activation rows with weight matrices.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_team.h"
#include "base/views.h"
#include "kernels/kernel_table.h"
#include "ops/op_context.h"
#include "quant/formats.h"

namespace powerinfer {

/// A weight matrix [rows, columns] in memory; rows are `row_bytes` apart.
struct MatrixView {
  Format format = Format::kF32;
  const std::uint8_t* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_bytes = 0;

  const std::uint8_t* Row(std::int64_t i) const { return data + i * row_bytes; }
  std::int64_t NumBytes() const { return rows * row_bytes; }
  /// Part `index` of `count` equal parts; empty if there is no matrix.
  MatrixView Part(std::int64_t index, std::int64_t count) const {
    if (data == nullptr) return *this;
    return {format, Row(rows / count * index), rows / count, columns, row_bytes};
  }
};

/// One product out = x * matrix^T + bias of several that share x.
struct LinearItem {
  MatrixView matrix;
  const float* bias = nullptr;  ///< f32[matrix.rows] or null
  RowsView<float> out;          ///< f32[num_tokens, matrix.rows]
};

/// Computes every item. x is f32[num_tokens, columns] with columns of all matrices equal; out must
/// not overlap x. Bits of the result do not depend on the number of threads. Decode rows: bound by
/// memory bandwidth; prompt rows: by the multipliers. Both multiply signs in the same way.
void Linear(const OpContext& context, RowsView<const float> x, std::span<const LinearItem> items);

/// Rows of x in the forms that the dot kernels of `formats` take: f32 views (copies that start on
/// cache lines for tiles of several tokens), and int8 copies if any format needs them (permuted too
/// for superblocks), and signs for `sign`. Valid until the next call with this workspace.
const ActivationRow* PrepareActivations(const OpContext& context, RowsView<const float> x,
                                        std::span<const Format> formats);

/// The same for the formats of all items.
const ActivationRow* PrepareActivations(const OpContext& context, RowsView<const float> x,
                                        std::span<const LinearItem> items);

}  // namespace powerinfer
