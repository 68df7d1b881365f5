// Products of activations with weight matrices.
#include <nanobind/stl/optional.h>

#include <vector>

#include "bind/bind.h"
#include "bind/handles.h"
#include "bind/row_kinds.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// out[i] = x * matrices[i]^T + biases[i]; one call, so that x is quantized once.
void BoundLinear(TeamHandle& team, const InputRows& x, const nb::list& matrices,
                 const nb::list& biases, const nb::list& outs, const RowMarks& is_prompt) {
  if (matrices.size() != biases.size() || matrices.size() != outs.size()) {
    RaiseShapeError("linear needs as many biases and outputs as matrices");
  }
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  std::vector<LinearItem> items(matrices.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const MatrixView& matrix = WholeView(team, nb::cast<const MatrixHandle&>(matrices[i]));
    CheckShape("x", input.rows, input.columns, -1, matrix.columns);
    const auto* bias = nb::cast<const VectorHandle*>(biases[i]);
    const auto out = nb::cast<OutputRows>(outs[i], false);
    items[i] = {matrix, VectorHandle::Checked("bias", bias, matrix.rows),
                CheckedRows<float>("out", out, input.rows, matrix.rows)};
  }
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  const auto run = [x, is_prompt, input, items, marks](const OpContext& context) {
    std::vector<LinearItem> part = items;
    ForRowKinds(context, marks, input.rows,
                [&](const OpContext& own, std::int64_t first, std::int64_t count) {
                  for (std::size_t i = 0; i < items.size(); ++i) {
                    part[i].out = items[i].out.Some(first, count);
                  }
                  Linear(own, input.Some(first, count), part);
                });
  };
  team.RunRecorded(run, matrices, biases, outs);
}

}  // namespace

void BindLinear(nb::module_& module) {
  module.def("linear", &BoundLinear, "team"_a, "x"_a.noconvert(), "matrices"_a, "biases"_a,
             "outs"_a, "is_prompt"_a.noconvert() = nb::none());
}

}  // namespace powerinfer
