// y += sum over rows of weight * row: attention's weighted sum of values.
//
// The sums stay in registers over all rows; each is one chain of multiply-adds in the order of the
// rows, so the bits do not depend on how callers split the rows. Bound by reading the rows once.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_float-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Columns [column, column + kVectors * kLanes) of all rows.
template <class Weights, int kVectors>
inline void AddRowsAt(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
                      const float* weights, std::int64_t column, float* y) {
  VecF sums[kVectors];
  for (int u = 0; u < kVectors; ++u) sums[u] = Load(y + column + u * kLanes);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    const std::uint8_t* row = rows + (r * columns + column) * Weights::kBytes;
    const VecF weight = Broadcast(weights[r]);
    for (int u = 0; u < kVectors; ++u) {
      sums[u] = Fma(Weights::LoadVec(row + u * kLanes * Weights::kBytes), weight, sums[u]);
    }
  }
  for (int u = 0; u < kVectors; ++u) Store(y + column + u * kLanes, sums[u]);
}

/// Fewer columns than a vector has lanes, padded with zeros.
template <class Weights>
inline void AddRowsTail(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
                        const float* weights, std::int64_t column, float* y) {
  const auto rest = static_cast<std::size_t>(columns - column);
  float padded[kLanes] = {};
  std::memcpy(padded, y + column, rest * sizeof(float));
  VecF sum = Load(padded);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    std::uint8_t row[4 * kLanes] = {};
    std::memcpy(row, rows + (r * columns + column) * Weights::kBytes,
                rest * static_cast<std::size_t>(Weights::kBytes));
    sum = Fma(Weights::LoadVec(row), Broadcast(weights[r]), sum);
  }
  Store(padded, sum);
  std::memcpy(y + column, padded, rest * sizeof(float));
}

/// rows: [num_rows, columns] without gaps; weights f32[num_rows]; y f32[columns].
template <class Weights>
void AddRows(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
             const float* weights, float* y) {
  constexpr int kUnroll = 8;  // two multiply-adds a cycle at a latency of four
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= columns; i += kUnroll * kLanes) {
    AddRowsAt<Weights, kUnroll>(rows, num_rows, columns, weights, i, y);
  }
  for (; i + kLanes <= columns; i += kLanes) {
    AddRowsAt<Weights, 1>(rows, num_rows, columns, weights, i, y);
  }
  if (i < columns) AddRowsTail<Weights>(rows, num_rows, columns, weights, i, y);
}

void AddRowsF32(const float* rows, std::int64_t num_rows, std::int64_t columns,
                const float* weights, float* y) {
  AddRows<F32Weights>(reinterpret_cast<const std::uint8_t*>(rows), num_rows, columns, weights, y);
}

void AddRowsF16(const std::uint16_t* rows, std::int64_t num_rows, std::int64_t columns,
                const float* weights, float* y) {
  AddRows<F16Weights>(reinterpret_cast<const std::uint8_t*>(rows), num_rows, columns, weights, y);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
