// Feed-forward blocks that report which neurons fire.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>

#include "base/rounding.h"
#include "bind/bind.h"
#include "bind/ffn.h"
#include "bind/released_gil.h"
#include "sparse/experts.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// All rows are prompt rows.
FFNStats BoundFFNFiring(TeamHandle& team, const InputRows& x, const FFNHandle& ffn,
                        const OutputRows& out, const Array<std::uint8_t, 2>& fired,
                        const std::optional<InputRows>& router_input) {
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  const RowsView<std::uint8_t> rows = CheckedRows<std::uint8_t>(
      "fired", fired, input.rows, DivideUp(ffn.view.IntermediateSize(), 8));
  const RowsView<const float> router_rows = CheckedRouterInput(router_input, input, ffn);
  const FiredBits bits{rows.data, rows.columns, nullptr, 0};
  FFNStats stats;
  team.Run([&](const OpContext& context) {
    std::fill_n(rows.data, rows.rows * rows.columns, std::uint8_t{0});
    const OpContext own = context.For(RowKind::kPrompt);
    if (ffn.view.HasExperts()) {
      RunExperts(own, input, router_rows, ffn.view, {}, output, &stats, bits);
    } else {
      RunFFN(own, input, ffn.view, output, &stats, bits);
    }
  });
  return stats;
}

void BoundCountFired(const Array<const std::uint8_t, 2>& fired,
                     const Array<std::int64_t, 1>& counts) {
  const RowsView<const std::uint8_t> rows =
      CheckedRows<const std::uint8_t>("fired", fired, -1, DivideUp(Size(counts, 0), 8));
  const std::int64_t rest = Size(counts, 0) % 8;
  for (std::int64_t i = 0; rest != 0 && i < rows.rows; ++i) {
    if (rows.Row(i)[rows.columns - 1] >> static_cast<std::uint32_t>(rest) == 0) continue;
    throw nb::value_error("fired has bits beyond the last neuron");
  }
  const ReleasedGil released;
  CountFired(rows.data, rows.rows, rows.columns, counts.data());
}

}  // namespace

void BindFiring(nb::module_& module) {
  module.def("ffn_firing", &BoundFFNFiring, "team"_a, "x"_a.noconvert(), "ffn"_a,
             "out"_a.noconvert(), "fired"_a.noconvert(), "router_input"_a.noconvert() = nb::none());
  module.def("count_fired", &BoundCountFired, "fired"_a.noconvert(), "counts"_a.noconvert());
}

}  // namespace powerinfer
