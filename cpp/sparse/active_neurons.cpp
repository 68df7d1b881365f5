#include "sparse/active_neurons.h"

#include <algorithm>
#include <cstddef>

namespace powerinfer {
namespace {

// Neighbouring neurons that all fire are read as one run.
constexpr std::int64_t kMaxRun = 16;
// Bytes to have on the way: what memory delivers while it answers one request, and some more.
constexpr std::int64_t kPrefetchBytes = 6 * 1024;

std::size_t PrefetchDistance(const MatrixView& matrix) {
  return static_cast<std::size_t>(1 + kPrefetchBytes / std::max<std::int64_t>(1, matrix.row_bytes));
}

/// Fetches row ids[place] if the list is that long.
void PrefetchRow(const MatrixView& matrix, std::span<const std::int32_t> ids, std::size_t place) {
  if (place >= ids.size()) return;
  const std::uint8_t* data = matrix.Row(ids[place]);
  for (std::int64_t i = 0; i < matrix.row_bytes; i += 64) __builtin_prefetch(data + i, 0, 2);
}

/// Length of the run of consecutive ids at the front.
std::int64_t RunLength(std::span<const std::int32_t> ids) {
  std::int64_t length = 1;
  const auto limit = std::min<std::int64_t>(static_cast<std::int64_t>(ids.size()), kMaxRun);
  while (length < limit && ids[static_cast<std::size_t>(length)] == ids[0] + length) ++length;
  return length;
}

}  // namespace

void DotListedRows(const MatrixView& matrix, const float* bias, const ActivationRow& x,
                   std::span<const std::int32_t> ids, float* out) {
  const DotRowsFn dot_rows = Kernels().dot_rows[static_cast<std::size_t>(matrix.format)];
  const std::size_t distance = PrefetchDistance(matrix);
  for (std::size_t i = 0; i < distance; ++i) PrefetchRow(matrix, ids, i);
  while (!ids.empty()) {
    const std::int64_t run = RunLength(ids);
    const auto length = static_cast<std::size_t>(run);
    for (std::size_t i = 0; i < length; ++i) PrefetchRow(matrix, ids, distance + i);
    dot_rows(matrix.Row(ids[0]), matrix.row_bytes, run, matrix.columns, &x, 1, out, run);
    if (bias != nullptr) {
      for (std::int64_t i = 0; i < run; ++i) out[i] += bias[ids[0] + i];
    }
    out += run;
    ids = ids.subspan(length);
  }
}

void AddListedRows(const MatrixView& matrix, std::span<const std::int32_t> ids, const float* scales,
                   float* sums) {
  const AxpyRowFn axpy_row = Kernels().axpy_row[static_cast<std::size_t>(matrix.format)];
  const std::size_t distance = PrefetchDistance(matrix);
  for (std::size_t i = 0; i < distance; ++i) PrefetchRow(matrix, ids, i);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PrefetchRow(matrix, ids, distance + i);
    axpy_row(matrix.Row(ids[i]), matrix.columns, scales[i], sums);
  }
}

}  // namespace powerinfer
