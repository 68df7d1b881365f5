#include "ops/short_conv.h"

#include "base/row_chunks.h"

namespace powerinfer {

void ShortConv(const OpContext& context, RowsView<const float> x, const float* weight,
               std::int64_t num_taps, const StateLayer& state, const BatchView& batch,
               RowsView<float> out) {
  const std::int64_t d = out.columns;
  float* memory = context.workspace.Get<float>(Scratch::kConvolution, x.rows * d);
  const RowsView<float> input = Rows(memory, x.rows, d);
  const auto prepare = [&](std::int64_t token, std::int64_t first, std::int64_t count) {
    const float* b = x.Row(token) + first;
    const float* u = b + 2 * d;
    float* products = input.Row(token) + first;
    for (std::int64_t i = 0; i < count; ++i) products[i] = b[i] * u[i];
  };
  const auto finish = [&](std::int64_t token, std::int64_t first, std::int64_t count) {
    const float* c = x.Row(token) + d + first;
    float* y = out.Row(token) + first;
    for (std::int64_t i = 0; i < count; ++i) y[i] *= c[i];
  };
  Convolve(context, StateSpans(batch, state), {weight, num_taps, ReadOnly(input), out}, prepare,
           finish);
}

void Gate(const OpContext& context, RowsView<float> x, RowsView<const float> g) {
  // An exponential costs as much as ten sums.
  ForEachRow(context.team, x.rows, 10 * x.columns,
             [&](std::int64_t t) { context.kernels.gate(g.Row(t), x.columns, x.Row(t)); });
}

}  // namespace powerinfer
