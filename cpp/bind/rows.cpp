// Operations on rows of activations: embedding look-up and normalisation.
#include <span>

#include "bind/bind.h"
#include "bind/handles.h"
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
  team.Run([&](const OpContext& context) { Embed(context, table.view, ids, rows); });
}

void BoundRmsNorm(TeamHandle& team, const InputRows& x, const VectorHandle& weight, float eps,
                  const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, input.columns);
  const float* scale = VectorHandle::Checked("weight", &weight, input.columns);
  team.Run([&](const OpContext& context) { RmsNorm(context.team, input, scale, eps, output); });
}

void BoundLayerNorm(TeamHandle& team, const InputRows& x, const VectorHandle& weight,
                    const VectorHandle* bias, float eps, const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, input.columns);
  const float* scale = VectorHandle::Checked("weight", &weight, input.columns);
  const float* shift = VectorHandle::Checked("bias", bias, input.columns);
  team.Run(
      [&](const OpContext& context) { LayerNorm(context.team, input, scale, shift, eps, output); });
}

}  // namespace

void BindRows(nb::module_& module) {
  module.def("embed", &BoundEmbed, "team"_a, "table"_a, "token_ids"_a.noconvert(),
             "out"_a.noconvert());
  module.def("rms_norm", &BoundRmsNorm, "team"_a, "x"_a.noconvert(), "weight"_a, "eps"_a,
             "out"_a.noconvert());
  module.def("layer_norm", &BoundLayerNorm, "team"_a, "x"_a.noconvert(), "weight"_a,
             "bias"_a.none(), "eps"_a, "out"_a.noconvert());
}

}  // namespace powerinfer
