// Products of prompt rows with weights of block formats, in int8 (kernels/int8_kernel.h).
#pragma once

#include <span>

#include "base/views.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// Linear for prompt rows; every item's format has int8 kernels. A result's bits depend on its row
/// and its token alone.
void Int8Linear(const OpContext& context, RowsView<const float> x,
                std::span<const LinearItem> items);

}  // namespace powerinfer
