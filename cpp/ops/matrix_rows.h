// Work on the rows of a weight matrix, one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/rounding.h"
#include "base/thread_team.h"
#include "kernels/kernel_table.h"
#include "ops/linear.h"

namespace powerinfer {

/// Calls body(row, thread) for all rows, in chunks of about 0.1 ms of work.
template <typename Body>
void ForRowsOf(ThreadTeam& team, const MatrixView& matrix, const Body& body) {
  constexpr std::int64_t kChunkWeights = 64 * 1024;
  const std::int64_t rows =
      std::max<std::int64_t>(1, kChunkWeights / std::max<std::int64_t>(1, matrix.columns));
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    const std::int64_t end = std::min(matrix.rows, (chunk + 1) * rows);
    for (std::int64_t row = chunk * rows; row < end; ++row) body(row, thread);
  };
  team.ParallelFor(DivideUp(matrix.rows, rows), std::ref(run));
}

inline void DecodeRow(const KernelTable& kernels, const MatrixView& matrix, std::int64_t row,
                      float* out) {
  const auto format = static_cast<std::size_t>(matrix.format);
  kernels.dequantize_row[format](matrix.Row(row), matrix.columns, out);
}

inline void KeepSmallest(std::atomic<std::int64_t>& smallest, std::int64_t value) {
  std::int64_t before = smallest.load();
  while (value < before && !smallest.compare_exchange_weak(before, value)) {
  }
}

}  // namespace powerinfer
