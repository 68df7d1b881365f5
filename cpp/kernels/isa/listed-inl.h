// Products of one f32 row with listed tokens, and sums of listed f32 rows: what a block of tokens
// computes for neurons that fire for few of them.
//
// Rows are whole vectors, padded with zeros. Every result is one chain of multiply-adds per lane in
// the order of the columns (or of the list), so its bits do not depend on its place in a list.
// Bound by the second-level cache: four bytes per multiply-add.
#pragma once

#include <cstdint>

#include "kernels/isa/dot_float-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

template <int kTokens>
inline void DotListedTokens(const float* row, std::int64_t columns, const float* x,
                            std::int64_t x_stride, const std::uint16_t* tokens, float* out) {
  const float* inputs[kTokens];
  VecF sums[kTokens];
  for (int j = 0; j < kTokens; ++j) {
    inputs[j] = x + tokens[j] * x_stride;
    sums[j] = Zero();
  }
  for (std::int64_t k = 0; k < columns; k += kLanes) {
    const VecF weights = Load(row + k);
    for (int j = 0; j < kTokens; ++j) sums[j] = Fma(weights, Load(inputs[j] + k), sums[j]);
  }
  for (int j = 0; j < kTokens; ++j) out[j] += Sum(sums[j]);
}

void DotListed(const float* row, std::int64_t columns, const float* x, std::int64_t x_stride,
               const std::uint16_t* tokens, std::int64_t count, float* out) {
  for (; count >= 8; count -= 8, tokens += 8, out += 8) {
    DotListedTokens<8>(row, columns, x, x_stride, tokens, out);
  }
  if (count >= 4) {
    DotListedTokens<4>(row, columns, x, x_stride, tokens, out);
    count -= 4, tokens += 4, out += 4;
  }
  if (count >= 2) {
    DotListedTokens<2>(row, columns, x, x_stride, tokens, out);
    count -= 2, tokens += 2, out += 2;
  }
  if (count == 1) DotListedTokens<1>(row, columns, x, x_stride, tokens, out);
}

template <int kVectors>
inline void AddListedColumns(const float* rows, std::int64_t stride, const std::int32_t* places,
                             std::int64_t first, const float* weights, std::int64_t count,
                             float* y) {
  VecF sums[kVectors];
  for (int u = 0; u < kVectors; ++u) sums[u] = Load(y + u * kLanes);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows + (places[i] - first) * stride;
    const VecF weight = Broadcast(weights[i]);
    for (int u = 0; u < kVectors; ++u) sums[u] = Fma(Load(row + u * kLanes), weight, sums[u]);
  }
  for (int u = 0; u < kVectors; ++u) Store(y + u * kLanes, sums[u]);
}

void AddListed(const float* rows, std::int64_t stride, const std::int32_t* places,
               std::int64_t first, const float* weights, std::int64_t count, std::int64_t columns,
               float* y) {
  constexpr int kUnroll = 8;  // two multiply-adds a cycle at a latency of four
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= columns; i += kUnroll * kLanes) {
    AddListedColumns<kUnroll>(rows + i, stride, places, first, weights, count, y + i);
  }
  for (; i < columns; i += kLanes) {
    AddListedColumns<1>(rows + i, stride, places, first, weights, count, y + i);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
