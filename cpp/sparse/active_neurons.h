// The rows of neurons that fire: up (and gate) products and sums of down rows, by groups of
// neurons.
#pragma once

#include <cstdint>
#include <span>

#include "ops/linear.h"
#include "sparse/activation.h"

namespace powerinfer {

/// out[i] = dot(matrix row ids[i], x) + bias[ids[i]] for a list of rows; bias may be null. Fetches
/// the next rows while it works on one.
void DotListedRows(const MatrixView& matrix, const float* bias, const ActivationRow& x,
                   std::span<const std::int32_t> ids, float* out);

/// sums[c] += sum over i of scales[i] * matrix[ids[i], c], in the order of the list.
void AddListedRows(const MatrixView& matrix, std::span<const std::int32_t> ids, const float* scales,
                   float* sums);

}  // namespace powerinfer
