#include "ops/add.h"

#include <cstdint>

#include "base/row_chunks.h"

namespace powerinfer {

void Add(ThreadTeam& team, RowsView<float> x, RowsView<const float> y) {
  ForEachRow(team, x.rows, x.columns, [&](std::int64_t t) {
    float* sums = x.Row(t);
    const float* terms = y.Row(t);
    for (std::int64_t i = 0; i < x.columns; ++i) sums[i] += terms[i];
  });
}

void Scale(ThreadTeam& team, RowsView<float> x, float factor) {
  ForEachRow(team, x.rows, x.columns, [&](std::int64_t t) {
    float* values = x.Row(t);
    for (std::int64_t i = 0; i < x.columns; ++i) values[i] *= factor;
  });
}

void GeluGate(const OpContext& context, RowsView<float> x, RowsView<const float> y) {
  ForEachRow(context.team, x.rows, 8 * x.columns,
             [&](std::int64_t t) { context.kernels.gemm.gelu(x.columns, x.Row(t), y.Row(t)); });
}

}  // namespace powerinfer
