// Feed-forward blocks: one call per block and step.
#include "bind/ffn.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/rounding.h"
#include "bind/bind.h"
#include "bind/predictor.h"
#include "bind/row_kinds.h"
#include "sparse/experts.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

// In the order of ActivationKind.
constexpr std::array<std::string_view, 7> kActivationNames = {
    "silu", "gelu", "relu", "drelu", "fatrelu", "relu2", "clamped_swiglu"};

ActivationKind ActivationByName(const std::string& name) {
  for (std::size_t i = 0; i < kActivationNames.size(); ++i) {
    if (kActivationNames[i] == name) return static_cast<ActivationKind>(i);
  }
  throw nb::value_error(("there is no activation '" + name + "'").c_str());
}

RouterRule RuleByName(const std::string& name) {
  if (name == "softmax") return RouterRule::kSoftmax;
  if (name == "sigmoid") return RouterRule::kSigmoid;
  throw nb::value_error(
      ("there is no router rule '" + name + "'; there are softmax, sigmoid").c_str());
}

/// Calls body(context for the kind, first row, number of rows, stats) for the runs of one kind, and
/// records the counts of the decode rows.
template <typename Body>
void RunCountedRows(const OpContext& context, const bool* marks, std::int64_t num_rows,
                    const FFNHandle& ffn, FFNStats* stats, const Body& body) {
  FFNStats decoded;
  std::int64_t rows = 0;
  std::int64_t batches = 0;
  ForRowKinds(context, marks, num_rows,
              [&](const OpContext& own, std::int64_t first, std::int64_t count) {
                const bool is_decode = own.rows == RowKind::kDecode;
                body(own, first, count, is_decode ? &decoded : stats);
                if (!is_decode) return;
                rows += count;
                batches += DivideUp(count, kMaxBatchTokens);
              });
  ffn.last_decode.Take(rows, batches, decoded);
  *stats += decoded;
}

FFNStats BoundFFN(TeamHandle& team, const InputRows& x, const FFNHandle& ffn, const OutputRows& out,
                  const PredictorHandle* predictor, const std::optional<InputRows>& predictor_input,
                  const RowMarks& is_prompt, const std::optional<InputRows>& router_input) {
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  RowsView<const float> predictor_rows = input;
  if (predictor != nullptr) {
    predictor->CheckBlock(ffn.view);
    if (predictor_input) {
      predictor_rows =
          CheckedRows<const float>("predictor_input", *predictor_input, input.rows, -1);
    }
    predictor->CheckInput(predictor_rows.columns);
  }
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  const RowsView<const float> router_rows = CheckedRouterInput(router_input, input, ffn);
  const auto run = [x, predictor_input, router_input, is_prompt, out, input, predictor_rows,
                    router_rows, output, marks, block = &ffn,
                    predictor](const OpContext& context, FFNStats* stats) {
    RunCountedRows(
        context, marks, input.rows, *block, stats,
        [&](const OpContext& own, std::int64_t first, std::int64_t count, FFNStats* sums) {
          const RowsView<const float> rows = input.Some(first, count);
          const RowsView<float> part = output.Some(first, count);
          if (block->view.HasExperts()) {
            NeuronChoice choice;
            if (predictor != nullptr) {
              choice = {&predictor->view, predictor_rows.Some(first, count), nullptr};
            }
            RunExperts(own, rows, router_rows.Some(first, count), block->view, choice, part, sums);
          } else if (predictor == nullptr) {
            RunFFN(own, rows, block->view, part, sums);
          } else {
            RunPredictedFFN(own, rows, block->view, predictor->view,
                            predictor_rows.Some(first, count), part, sums);
          }
        });
  };
  return team.RunCounted(run, ffn, nb::find(predictor));
}

template <typename T>
using Numbers = Array<const T, 1>;

/// Raises ShapeError or IndexError unless the lists are of `num_tokens` tokens, strictly increasing
/// and within [0, num_neurons).
NeuronIds CheckedIds(const Numbers<std::int64_t>& offsets, const Numbers<std::int32_t>& ids,
                     std::int64_t num_tokens, std::int64_t num_neurons) {
  if (Size(offsets, 0) != num_tokens + 1) {
    RaiseShapeError("offsets has " + std::to_string(Size(offsets, 0)) + " entries, must have " +
                    std::to_string(num_tokens + 1) + ", one more than there are tokens");
  }
  const std::int64_t* ends = offsets.data();
  std::int64_t begin = 0;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int64_t end = ends[token + 1];
    const std::string where = "neuron ids of token " + std::to_string(token);
    if (ends[token] != begin || end < begin || end > Size(ids, 0)) {
      throw nb::index_error((where + " do not lie one after the other in ids").c_str());
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t id = ids.data()[i];
      if (id < 0 || id >= num_neurons || (i > begin && id <= ids.data()[i - 1])) {
        throw nb::index_error((where + " must increase strictly within [0, " +
                               std::to_string(num_neurons) + "); got " + std::to_string(id) +
                               " at place " + std::to_string(i - begin))
                                  .c_str());
      }
    }
    begin = end;
  }
  if (ends[0] != 0 || begin != Size(ids, 0)) {
    throw nb::index_error("offsets must begin with 0 and end with the number of ids");
  }
  return {ends, ids.data(), num_tokens};
}

FFNStats BoundFFNActive(TeamHandle& team, const InputRows& x, const FFNHandle& ffn,
                        const Numbers<std::int64_t>& offsets, const Numbers<std::int32_t>& ids,
                        const OutputRows& out, const RowMarks& is_prompt,
                        const std::optional<InputRows>& router_input) {
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  const NeuronIds neurons = CheckedIds(offsets, ids, input.rows, ffn.view.IntermediateSize());
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  const RowsView<const float> router_rows = CheckedRouterInput(router_input, input, ffn);
  FFNStats stats;
  const auto run = [&](const OpContext& context, std::int64_t first, std::int64_t count,
                       FFNStats* sums) {
    const NeuronIds listed = neurons.Tokens(first, count);
    const RowsView<const float> rows = input.Some(first, count);
    if (ffn.view.HasExperts()) {
      RunExperts(context, rows, router_rows.Some(first, count), ffn.view, {nullptr, {}, &listed},
                 output.Some(first, count), sums);
    } else {
      RunListedFFN(context, rows, ffn.view, listed, output.Some(first, count), sums);
    }
  };
  team.Run([&](const OpContext& context) {
    RunCountedRows(context, marks, input.rows, ffn, &stats, run);
  });
  return stats;
}

FFNStats BoundWeightedFFN(TeamHandle& team, const InputRows& x, const FFNHandle& ffn,
                          const Numbers<std::int64_t>& offsets, const Numbers<std::int32_t>& ids,
                          const InputRows& weights, const OutputRows& out,
                          const RowMarks& is_prompt) {
  if (!ffn.view.HasExperts()) throw nb::value_error("weights need a block with a router");
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  const RowsView<const float> shares =
      CheckedRows<const float>("weights", weights, input.rows, ffn.view.NumExperts());
  const NeuronIds neurons = CheckedIds(offsets, ids, input.rows, ffn.view.IntermediateSize());
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  FFNStats stats;
  const auto run = [&](const OpContext& context, std::int64_t first, std::int64_t count) {
    RunWeightedExperts(context, input.Some(first, count), shares.Some(first, count), ffn.view,
                       neurons.Tokens(first, count), output.Some(first, count), &stats);
  };
  team.Run([&](const OpContext& context) { ForRowKinds(context, marks, input.rows, run); });
  return stats;
}

void BoundRoute(TeamHandle& team, const FFNHandle& ffn, const InputRows& x,
                const Array<std::int32_t, 2>& ids, const OutputRows& weights,
                const RowMarks& is_prompt) {
  if (!ffn.view.HasExperts()) throw nb::value_error("route needs a block with a router");
  const RouterView& router = ffn.view.router;
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, router.matrix.columns);
  const RowsView<std::int32_t> id_rows =
      CheckedRows<std::int32_t>("ids_out", ids, input.rows, router.num_used);
  const RowsView<float> weight_rows =
      CheckedRows<float>("weights_out", weights, input.rows, router.num_used);
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  const auto run = [&](const OpContext& context, std::int64_t first, std::int64_t count) {
    Route(context, input.Some(first, count), router, id_rows.Row(first), weight_rows.Row(first));
  };
  team.Run([&](const OpContext& context) { ForRowKinds(context, marks, input.rows, run); });
}

}  // namespace

RowsView<const float> CheckedRouterInput(const std::optional<InputRows>& router_input,
                                         RowsView<const float> x, const FFNHandle& ffn) {
  if (!ffn.view.HasExperts()) {
    if (router_input) throw nb::value_error("router_input is for blocks with a router");
    return x;
  }
  const std::int64_t columns = ffn.view.router.matrix.columns;
  if (router_input) return CheckedRows<const float>("router_input", *router_input, x.rows, columns);
  CheckShape("router", -1, columns, -1, x.columns);
  return x;
}

RouterHandle::RouterHandle(nb::object matrix, nb::object bias, const std::string& rule,
                           std::int64_t num_used, bool is_normalized, nb::object selection_bias,
                           float scale, nb::object expert_scale)
    : objects{std::move(matrix), std::move(bias), std::move(selection_bias),
              std::move(expert_scale)} {
  view.matrix = nb::cast<const MatrixHandle&>(objects[0]).view;
  view.bias = BiasOf("bias of the router", objects[1], view.NumExperts());
  view.rule = RuleByName(rule);
  view.num_used = num_used;
  view.is_normalized = is_normalized;
  view.selection_bias = BiasOf("selection bias of the router", objects[2], view.NumExperts());
  view.scale = scale;
  view.expert_scale = BiasOf("scale of the experts", objects[3], view.NumExperts());
  if (num_used >= 1 && num_used <= view.NumExperts()) return;
  throw nb::value_error(("a router of " + std::to_string(view.NumExperts()) +
                         " experts cannot choose " + std::to_string(num_used))
                            .c_str());
}

FFNHandle::FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
                     bool is_down_transposed, bool is_exact_sparse, nb::object router,
                     std::tuple<float, float> dip)
    : router_object(std::move(router)), parts{std::move(gate), std::move(up), std::move(down)} {
  view.gate = ViewOf(std::get<0>(parts[0]));
  view.up = ViewOf(std::get<0>(parts[1]));
  view.down = ViewOf(std::get<0>(parts[2]));
  if (view.up.data == nullptr || view.down.data == nullptr) {
    throw nb::value_error("a feed-forward block needs the matrices up and down");
  }
  const std::int64_t hidden = view.HiddenSize();
  const std::int64_t neurons = view.IntermediateSize();
  if (!router_object.is_none()) {
    view.router = nb::cast<const RouterHandle&>(router_object).view;
    if (neurons % view.NumExperts() != 0) {
      RaiseShapeError("up has " + std::to_string(neurons) +
                      " rows, must have as many for each of " + std::to_string(view.NumExperts()) +
                      " experts");
    }
  }
  const std::int64_t outputs = view.NumExperts() * hidden;
  if (view.HasGate()) CheckShape("gate", view.gate.rows, view.gate.columns, neurons, hidden);
  CheckShape("down", view.down.rows, view.down.columns, is_down_transposed ? neurons : outputs,
             is_down_transposed ? hidden : view.ExpertSize());
  view.gate_bias = BiasOf("bias of gate", std::get<1>(parts[0]), neurons);
  view.up_bias = BiasOf("bias of up", std::get<1>(parts[1]), neurons);
  view.down_bias = BiasOf("bias of down", std::get<1>(parts[2]), outputs);
  view.activation = {ActivationByName(activation), threshold, std::get<0>(dip), std::get<1>(dip)};
  view.is_down_transposed = is_down_transposed;
  view.is_exact_sparse = is_exact_sparse;
  for (const Part& part : parts) lazy.Add(std::get<0>(part));
  lazy.CheckExperts("the feed-forward block", view);
  view.filler = lazy.Filler();
}

void BindFFN(nb::module_& module) {
  nb::class_<FFNStats>(module, "FFNStats")
      .def_ro("active", &FFNStats::active)
      .def_ro("predicted", &FFNStats::predicted)
      .def_ro("total", &FFNStats::total)
      .def_ro("bytes_read", &FFNStats::bytes_read)
      .def_ro("predictor_bytes", &FFNStats::predictor_bytes)
      .def_ro("down_bytes", &FFNStats::down_bytes)
      .def_ro("router_bytes", &FFNStats::router_bytes)
      .def_ro("predictor_s", &FFNStats::predictor_s)
      .def_ro("down_s", &FFNStats::down_s)
      .def_ro("router_s", &FFNStats::router_s);
  nb::class_<RouterHandle>(module, "Router")
      .def(nb::init<nb::object, nb::object, const std::string&, std::int64_t, bool, nb::object,
                    float, nb::object>(),
           "matrix"_a, "bias"_a.none(), "rule"_a, "num_used"_a, "is_normalized"_a,
           "selection_bias"_a.none() = nb::none(), "scale"_a = 1.0F,
           "expert_scale"_a.none() = nb::none());
  nb::class_<FFNHandle>(module, "FFN")
      .def(nb::init<Part, Part, Part, const std::string&, float, bool, bool, nb::object,
                    std::tuple<float, float>>(),
           "gate"_a, "up"_a, "down"_a, "activation"_a, "threshold"_a, "is_down_transposed"_a,
           "is_exact_sparse"_a, "router"_a.none() = nb::none(), "dip"_a = std::tuple(1.0F, 0.0F))
      .def_prop_ro("last_decode", [](const FFNHandle& ffn) { return ffn.last_decode.Numbers(); });
  module.def("ffn", &BoundFFN, "team"_a, "x"_a.noconvert(), "ffn"_a, "out"_a.noconvert(),
             "predictor"_a.none() = nb::none(), "predictor_input"_a.noconvert() = nb::none(),
             "is_prompt"_a.noconvert() = nb::none(), "router_input"_a.noconvert() = nb::none());
  module.def("ffn_active", &BoundFFNActive, "team"_a, "x"_a.noconvert(), "ffn"_a,
             "offsets"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(),
             "is_prompt"_a.noconvert() = nb::none(), "router_input"_a.noconvert() = nb::none());
  module.def("ffn_weighted", &BoundWeightedFFN, "team"_a, "x"_a.noconvert(), "ffn"_a,
             "offsets"_a.noconvert(), "ids"_a.noconvert(), "weights"_a.noconvert(),
             "out"_a.noconvert(), "is_prompt"_a.noconvert() = nb::none());
  module.def("route", &BoundRoute, "team"_a, "ffn"_a, "x"_a.noconvert(), "ids_out"_a.noconvert(),
             "weights_out"_a.noconvert(), "is_prompt"_a.noconvert() = nb::none());
}

}  // namespace powerinfer
