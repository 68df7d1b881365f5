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

}  // namespace powerinfer
