#include "ops/norm.h"

#include <cmath>
#include <cstdint>

#include "base/row_chunks.h"

namespace powerinfer {
namespace {

// Sixteen running sums, so that compilers vectorize without reordering: the bits stay the same.
constexpr std::int64_t kLanes = 16;

template <typename Term>
float SumOf(std::int64_t n, const Term& term) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (std::int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace

void RmsNormRow(const float* row, std::int64_t columns, const float* weight, float eps,
                float* out) {
  const float squares = SumOf(columns, [&](std::int64_t i) { return row[i] * row[i]; });
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(columns) + eps);
  for (std::int64_t i = 0; i < columns; ++i) out[i] = row[i] * scale * weight[i];
}

void RmsNorm(ThreadTeam& team, RowsView<const float> x, const float* weight, float eps,
             RowsView<float> out) {
  ForEachRow(team, x.rows, x.columns,
             [&](std::int64_t t) { RmsNormRow(x.Row(t), x.columns, weight, eps, out.Row(t)); });
}

void LayerNorm(ThreadTeam& team, RowsView<const float> x, const float* weight, const float* bias,
               float eps, RowsView<float> out) {
  const std::int64_t n = x.columns;
  ForEachRow(team, x.rows, n, [&](std::int64_t t) {
    const float* row = x.Row(t);
    float* result = out.Row(t);
    const float count = static_cast<float>(n);
    const float mean = SumOf(n, [&](std::int64_t i) { return row[i]; }) / count;
    const float squares = SumOf(n, [&](std::int64_t i) {
      const float centred = row[i] - mean;
      return centred * centred;
    });
    const float scale = 1.0F / std::sqrt(squares / count + eps);
    for (std::int64_t i = 0; i < n; ++i) result[i] = (row[i] - mean) * scale * weight[i];
    if (bias == nullptr) return;
    for (std::int64_t i = 0; i < n; ++i) result[i] += bias[i];
  });
}

}  // namespace powerinfer
