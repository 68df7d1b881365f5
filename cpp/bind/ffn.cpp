// Feed-forward blocks: one call per block and step.
#include "sparse/ffn.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <string_view>
#include <tuple>

#include "bind/bind.h"
#include "bind/handles.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

// In the order of ActivationKind.
constexpr std::array<std::string_view, 6> kActivationNames = {"silu",  "gelu",    "relu",
                                                              "drelu", "fatrelu", "relu2"};

ActivationKind ActivationByName(const std::string& name) {
  for (std::size_t i = 0; i < kActivationNames.size(); ++i) {
    if (kActivationNames[i] == name) return static_cast<ActivationKind>(i);
  }
  throw nb::value_error(("there is no activation '" + name + "'").c_str());
}

/// One matrix with its bias; the matrix is None for the gate of an ungated block.
using Part = std::tuple<nb::object, nb::object>;

struct FFNHandle {
  FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
            bool is_down_transposed, bool is_exact_sparse);

  FFNView view;
  std::array<Part, 3> parts;  // keeps the weights alive
};

MatrixView ViewOf(const Part& part) {
  const nb::object& matrix = std::get<0>(part);
  return matrix.is_none() ? MatrixView{} : nb::cast<const MatrixHandle&>(matrix).view;
}

const float* BiasOf(const char* what, const Part& part, std::int64_t length) {
  const nb::object& bias = std::get<1>(part);
  if (bias.is_none()) return nullptr;
  return VectorHandle::Checked(what, &nb::cast<const VectorHandle&>(bias), length);
}

FFNHandle::FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
                     bool is_down_transposed, bool is_exact_sparse)
    : parts{std::move(gate), std::move(up), std::move(down)} {
  view.gate = ViewOf(parts[0]);
  view.up = ViewOf(parts[1]);
  view.down = ViewOf(parts[2]);
  if (view.up.data == nullptr || view.down.data == nullptr) {
    throw nb::value_error("a feed-forward block needs the matrices up and down");
  }
  const std::int64_t hidden = view.HiddenSize();
  const std::int64_t neurons = view.IntermediateSize();
  if (view.HasGate()) CheckShape("gate", view.gate.rows, view.gate.columns, neurons, hidden);
  CheckShape("down", view.down.rows, view.down.columns, is_down_transposed ? neurons : hidden,
             is_down_transposed ? hidden : neurons);
  view.gate_bias = BiasOf("bias of gate", parts[0], neurons);
  view.up_bias = BiasOf("bias of up", parts[1], neurons);
  view.down_bias = BiasOf("bias of down", parts[2], hidden);
  view.activation = {ActivationByName(activation), threshold};
  view.is_down_transposed = is_down_transposed;
  view.is_exact_sparse = is_exact_sparse;
}

/// Returns (active, total, bytes_read) of this call.
std::tuple<std::int64_t, std::int64_t, std::int64_t> BoundFFN(TeamHandle& team, const InputRows& x,
                                                              const FFNHandle& ffn,
                                                              const OutputRows& out) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, ffn.view.HiddenSize());
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, ffn.view.HiddenSize());
  FFNStats stats;
  team.Run([&](ThreadTeam& threads, Workspace& workspace) {
    RunFFN(threads, workspace, input, ffn.view, output, &stats);
  });
  return {stats.active, stats.total, stats.bytes_read};
}

}  // namespace

void BindFFN(nb::module_& module) {
  nb::class_<FFNHandle>(module, "FFN")
      .def(nb::init<Part, Part, Part, const std::string&, float, bool, bool>(), "gate"_a, "up"_a,
           "down"_a, "activation"_a, "threshold"_a, "is_down_transposed"_a, "is_exact_sparse"_a);
  module.def("ffn", &BoundFFN, "team"_a, "x"_a.noconvert(), "ffn"_a, "out"_a.noconvert());
}

}  // namespace powerinfer
