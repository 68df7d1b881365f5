// Operations on rows of activations: embedding look-up, normalisation, sums, products, copies.
#include <algorithm>
#include <cstddef>
#include <span>

#include "bind/bind.h"
#include "bind/handles.h"
#include "ops/add.h"
#include "ops/embed.h"
#include "ops/norm.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

void BoundEmbed(TeamHandle& team, const MatrixHandle& table,
                const Array<const std::int32_t, 1>& token_ids, const OutputRows& out) {
  const RowsView<float> rows =
      CheckedRows<float>("out", out, Size(token_ids, 0), table.view.columns);
  const std::span<const std::int32_t> ids(token_ids.data(), token_ids.shape(0));
  const MatrixView& whole = WholeView(team, table);
  team.Run([&](const OpContext& context) { Embed(context, whole, ids, rows); });
}

void BoundRmsNorm(TeamHandle& team, const InputRows& x, const VectorHandle& weight, float eps,
                  const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, input.columns);
  const float* scale = VectorHandle::Checked("weight", &weight, input.columns);
  const auto run = [x, out, input, scale, eps, output](const OpContext& context) {
    RmsNorm(context.team, input, scale, eps, output);
  };
  team.RunRecorded(run, weight);
}

void BoundLayerNorm(TeamHandle& team, const InputRows& x, const VectorHandle& weight,
                    const VectorHandle* bias, float eps, const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, input.columns);
  const float* scale = VectorHandle::Checked("weight", &weight, input.columns);
  const float* shift = VectorHandle::Checked("bias", bias, input.columns);
  const auto run = [x, out, input, scale, shift, eps, output](const OpContext& context) {
    LayerNorm(context.team, input, scale, shift, eps, output);
  };
  team.RunRecorded(run, weight, nb::find(bias));
}

/// x += y.
void BoundAdd(TeamHandle& team, const OutputRows& x, const InputRows& y) {
  const RowsView<float> sums = CheckedRows<float>("x", x, -1, -1);
  const RowsView<const float> terms = CheckedRows<const float>("y", y, sums.rows, sums.columns);
  team.RunRecorded(
      [x, y, sums, terms](const OpContext& context) { Add(context.team, sums, terms); });
}

/// x *= factor.
void BoundScale(TeamHandle& team, const OutputRows& x, float factor) {
  const RowsView<float> values = CheckedRows<float>("x", x, -1, -1);
  team.RunRecorded(
      [x, values, factor](const OpContext& context) { Scale(context.team, values, factor); });
}

/// x = gelu(x) * y.
void BoundGeluGate(TeamHandle& team, const OutputRows& x, const InputRows& y) {
  const RowsView<float> values = CheckedRows<float>("x", x, -1, -1);
  const RowsView<const float> factors =
      CheckedRows<const float>("y", y, values.rows, values.columns);
  team.RunRecorded(
      [x, y, values, factors](const OpContext& context) { GeluGate(context, values, factors); });
}

/// out[i] = x[rows[i]]. Raises IndexError for rows that do not exist.
void BoundTakeRows(TeamHandle& team, const InputRows& x, const Array<const std::int32_t, 1>& rows,
                   const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  const RowsView<float> taken = CheckedRows<float>("out", out, Size(rows, 0), input.columns);
  const std::span<const std::int32_t> ids(rows.data(), rows.shape(0));
  const auto is_row = [&](std::int32_t id) { return id >= 0 && id < input.rows; };
  if (!std::ranges::all_of(ids, is_row)) throw nb::index_error("there is no such row");
  team.RunRecorded([x, rows, out, input, ids, taken](const OpContext&) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(input.Row(ids[i]), input.columns, taken.Row(static_cast<std::int64_t>(i)));
    }
  });
}

}  // namespace

void BindRows(nb::module_& module) {
  module.def("embed", &BoundEmbed, "team"_a, "table"_a, "token_ids"_a.noconvert(),
             "out"_a.noconvert());
  module.def("rms_norm", &BoundRmsNorm, "team"_a, "x"_a.noconvert(), "weight"_a, "eps"_a,
             "out"_a.noconvert());
  module.def("layer_norm", &BoundLayerNorm, "team"_a, "x"_a.noconvert(), "weight"_a,
             "bias"_a.none(), "eps"_a, "out"_a.noconvert());
  module.def("take_rows", &BoundTakeRows, "team"_a, "x"_a.noconvert(), "rows"_a.noconvert(),
             "out"_a.noconvert());
  module.def("scale", &BoundScale, "team"_a, "x"_a.noconvert(), "factor"_a);
  module.def("gelu_gate", &BoundGeluGate, "team"_a, "x"_a.noconvert(), "y"_a.noconvert());
  module.def("add", &BoundAdd, "team"_a, "x"_a.noconvert(), "y"_a.noconvert());
}

}  // namespace powerinfer
