// The output head for a choice among the largest logits.
#include "ops/screened_head.h"

#include <string>
#include <vector>

#include "bind/bind.h"
#include "bind/handles.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// Checks a copy against the head that it is of.
HeadCopy CheckedCopy(TeamHandle& team, const MatrixView& head, const MatrixHandle& matrix,
                     const Array<const std::int32_t, 1>& columns, const InputRows& norms,
                     float double_error) {
  const HeadCopy copy{WholeView(team, matrix),
                      {columns.data(), columns.size()},
                      CheckedRows("norms", norms, 2, head.rows),
                      double_error};
  const std::int64_t size = copy.matrix.columns;
  CheckShape("copy", copy.matrix.rows, size, head.rows, -1);
  CheckShape("columns", 1, Size(columns, 0), 1, size);
  if (size < head.columns || size > 2 * head.columns || size % 32 != 0) {
    RaiseShapeError("a copy of a head of " + std::to_string(head.columns) +
                    " columns has up to twice as many, a multiple of 32, got " +
                    std::to_string(size));
  }
  for (const std::int32_t column : copy.columns) {
    if (column < 0 || column >= head.columns) {
      throw nb::index_error(("there is no column " + std::to_string(column)).c_str());
    }
  }
  return copy;
}

std::int64_t BoundScreenedHead(TeamHandle& team, const InputRows& x, const MatrixHandle& matrix,
                               const VectorHandle* bias, const nb::tuple& copied,
                               const Array<const std::int64_t, 1>& counts,
                               const Array<const float, 1>& margins, const OutputRows& out) {
  const MatrixView& head = WholeView(team, matrix);
  const RowsView<const float> input = CheckedRows("x", x, -1, head.columns);
  if (copied.size() != 4) RaiseShapeError("a copy of a head has 4 parts");
  const auto columns = nb::cast<Array<const std::int32_t, 1>>(copied[1], false);
  const auto norms = nb::cast<InputRows>(copied[2], false);
  const HeadCopy copy = CheckedCopy(team, head, nb::cast<const MatrixHandle&>(copied[0]), columns,
                                    norms, nb::cast<float>(copied[3]));
  CheckShape("counts", 1, Size(counts, 0), 1, input.rows);
  CheckShape("margins", 1, Size(margins, 0), 1, input.rows);
  const LinearItem item{head, VectorHandle::Checked("bias", bias, head.rows),
                        CheckedRows("out", out, input.rows, head.rows)};
  std::vector<WantedLogits> wanted;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts.data()[i] < 1) RaiseShapeError("at least one logit of a token is wanted");
    wanted.push_back({counts.data()[i], margins.data()[i]});
  }
  std::int64_t computed = 0;
  team.Run([&](const OpContext& context) {
    computed = ScreenedHead(context, input, item, copy, wanted);
  });
  return computed;
}

}  // namespace

void BindScreenedHead(nb::module_& module) {
  module.def("screened_head", &BoundScreenedHead, "team"_a, "x"_a.noconvert(), "matrix"_a,
             "bias"_a.none(), "copied"_a, "counts"_a.noconvert(), "margins"_a.noconvert(),
             "out"_a.noconvert());
}

}  // namespace powerinfer
