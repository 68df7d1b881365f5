// Feed-forward blocks and neuron predictors: one call per block and step.
#include "sparse/ffn.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

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

MatrixView ViewOf(const nb::object& matrix) {
  return matrix.is_none() ? MatrixView{} : nb::cast<const MatrixHandle&>(matrix).view;
}

const float* BiasOf(const std::string& what, const nb::object& bias, std::int64_t length) {
  if (bias.is_none()) return nullptr;
  return VectorHandle::Checked(what.c_str(), &nb::cast<const VectorHandle&>(bias), length);
}

FFNHandle::FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
                     bool is_down_transposed, bool is_exact_sparse)
    : parts{std::move(gate), std::move(up), std::move(down)} {
  view.gate = ViewOf(std::get<0>(parts[0]));
  view.up = ViewOf(std::get<0>(parts[1]));
  view.down = ViewOf(std::get<0>(parts[2]));
  if (view.up.data == nullptr || view.down.data == nullptr) {
    throw nb::value_error("a feed-forward block needs the matrices up and down");
  }
  const std::int64_t hidden = view.HiddenSize();
  const std::int64_t neurons = view.IntermediateSize();
  if (view.HasGate()) CheckShape("gate", view.gate.rows, view.gate.columns, neurons, hidden);
  CheckShape("down", view.down.rows, view.down.columns, is_down_transposed ? neurons : hidden,
             is_down_transposed ? hidden : neurons);
  view.gate_bias = BiasOf("bias of gate", std::get<1>(parts[0]), neurons);
  view.up_bias = BiasOf("bias of up", std::get<1>(parts[1]), neurons);
  view.down_bias = BiasOf("bias of down", std::get<1>(parts[2]), hidden);
  view.activation = {ActivationByName(activation), threshold};
  view.is_down_transposed = is_down_transposed;
  view.is_exact_sparse = is_exact_sparse;
}

/// Matrix, bias (or None) and threshold.
using Stage = std::tuple<nb::object, nb::object, float>;

struct PredictorHandle {
  PredictorHandle(nb::object fc1, nb::object center, std::vector<Stage> stages);

  /// Raises ShapeError unless the predictor takes inputs of this size.
  void CheckInput(std::int64_t hidden_size) const;
  /// Raises ShapeError unless the predictor belongs to the block.
  void CheckBlock(const FFNView& ffn) const;

  PredictorView view;
  std::int64_t center_size = 0;
  nb::object fc1_object, center_object;  // keep the weights alive
  std::vector<Stage> stage_objects;
};

/// Raises ShapeError unless `columns` is `size` or `size` padded to whole blocks.
void CheckColumns(const std::string& what, std::int64_t columns, std::int64_t size) {
  const std::int64_t padded =
      (size + kPredictorPadding - 1) / kPredictorPadding * kPredictorPadding;
  if (columns >= size && columns <= padded) return;
  RaiseShapeError(what + " has " + std::to_string(columns) + " columns, must have " +
                  std::to_string(size) + " (up to " + std::to_string(padded) + " with padding)");
}

std::string StageName(std::size_t i) { return "score stage " + std::to_string(i + 1); }

PredictorHandle::PredictorHandle(nb::object fc1, nb::object center, std::vector<Stage> stages)
    : fc1_object(std::move(fc1)),
      center_object(std::move(center)),
      stage_objects(std::move(stages)) {
  const std::size_t count = stage_objects.size();
  if (count < 1 || count > static_cast<std::size_t>(kMaxScoreStages)) {
    throw nb::value_error(("a predictor has 1 to " + std::to_string(kMaxScoreStages) +
                           " score stages, got " + std::to_string(count))
                              .c_str());
  }
  view.fc1 = ViewOf(fc1_object);
  view.num_stages = static_cast<std::int64_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [matrix, bias, threshold] = stage_objects[i];
    ScoreStage& stage = view.stages[i];
    stage.matrix = nb::cast<const MatrixHandle&>(matrix).view;
    const std::int64_t neurons = view.stages[0].matrix.rows;
    if (stage.matrix.rows != neurons) {
      RaiseShapeError(StageName(i) + " has " + std::to_string(stage.matrix.rows) +
                      " rows, must have one per neuron as the first: " + std::to_string(neurons));
    }
    if (view.HasHiddenLayer()) CheckColumns(StageName(i), stage.matrix.columns, view.fc1.rows);
    stage.bias = BiasOf("bias of " + StageName(i), bias, neurons);
    stage.threshold = threshold;
  }
  if (!center_object.is_none()) {
    const auto& vector = nb::cast<const VectorHandle&>(center_object);
    view.center = vector.Data();
    center_size = vector.Length();
    CheckInput(center_size);
  }
}

void PredictorHandle::CheckInput(std::int64_t hidden_size) const {
  if (view.center != nullptr && center_size != hidden_size) {
    RaiseShapeError("the center of the predictor has " + std::to_string(center_size) +
                    " entries, must have " + std::to_string(hidden_size));
  }
  if (view.HasHiddenLayer()) {
    CheckColumns("fc1 of the predictor", view.fc1.columns, hidden_size);
    return;
  }
  for (std::size_t i = 0; i < stage_objects.size(); ++i) {
    CheckColumns(StageName(i), view.stages[i].matrix.columns, hidden_size);
  }
}

void PredictorHandle::CheckBlock(const FFNView& ffn) const {
  if (view.IntermediateSize() == ffn.IntermediateSize()) return;
  RaiseShapeError("the predictor scores " + std::to_string(view.IntermediateSize()) +
                  " neurons, the feed-forward block has " + std::to_string(ffn.IntermediateSize()));
}

/// (active, predicted, total, ffn_bytes, predictor_bytes, down_bytes, predictor_s, down_s) of a
/// call.
using StatsTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                              std::int64_t, double, double>;

StatsTuple TupleOf(const FFNStats& stats) {
  return {stats.active,          stats.predicted,  stats.total,       stats.bytes_read,
          stats.predictor_bytes, stats.down_bytes, stats.predictor_s, stats.down_s};
}

StatsTuple BoundFFN(TeamHandle& team, const InputRows& x, const FFNHandle& ffn,
                    const OutputRows& out, const PredictorHandle* predictor,
                    const std::optional<InputRows>& predictor_input) {
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  RowsView<const float> seen = input;
  if (predictor != nullptr) {
    predictor->CheckBlock(ffn.view);
    if (predictor_input) {
      seen = CheckedRows<const float>("predictor_input", *predictor_input, input.rows, -1);
    }
    predictor->CheckInput(seen.columns);
  }
  FFNStats stats;
  team.Run([&](ThreadTeam& threads, Workspace& workspace) {
    if (predictor == nullptr) {
      RunFFN(threads, workspace, input, ffn.view, output, &stats);
    } else {
      RunPredictedFFN(threads, workspace, input, ffn.view, predictor->view, seen, output, &stats);
    }
  });
  return TupleOf(stats);
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
    const std::string who = "neuron ids of token " + std::to_string(token);
    if (ends[token] != begin || end < begin || end > Size(ids, 0)) {
      throw nb::index_error((who + " do not lie one after the other in ids").c_str());
    }
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t id = ids.data()[i];
      if (id < 0 || id >= num_neurons || (i > begin && id <= ids.data()[i - 1])) {
        throw nb::index_error((who + " must increase strictly within [0, " +
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

StatsTuple BoundFFNActive(TeamHandle& team, const InputRows& x, const FFNHandle& ffn,
                          const Numbers<std::int64_t>& offsets, const Numbers<std::int32_t>& ids,
                          const OutputRows& out) {
  const std::int64_t hidden_size = ffn.view.HiddenSize();
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, hidden_size);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, hidden_size);
  const NeuronIds neurons = CheckedIds(offsets, ids, input.rows, ffn.view.IntermediateSize());
  FFNStats stats;
  team.Run([&](ThreadTeam& threads, Workspace& workspace) {
    RunListedFFN(threads, workspace, input, ffn.view, neurons, output, &stats);
  });
  return TupleOf(stats);
}

/// A numpy array that owns the vector's numbers.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ToNumpy(std::vector<T> numbers) {
  auto owned = std::make_unique<std::vector<T>>(std::move(numbers));
  const std::size_t size = owned->size();
  T* data = owned->data();
  const nb::capsule owner(
      owned.release(), [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

nb::object BoundPredict(TeamHandle& team, const InputRows& x, const PredictorHandle& predictor) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  predictor.CheckInput(input.columns);
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ids;
  PredictorStats stats;
  team.Run([&](ThreadTeam& threads, Workspace& workspace) {
    PredictNeurons(threads, workspace, input, predictor.view, &offsets, &ids, &stats);
  });
  return nb::make_tuple(ToNumpy(std::move(offsets)), ToNumpy(std::move(ids)));
}

}  // namespace

void BindFFN(nb::module_& module) {
  nb::class_<FFNHandle>(module, "FFN")
      .def(nb::init<Part, Part, Part, const std::string&, float, bool, bool>(), "gate"_a, "up"_a,
           "down"_a, "activation"_a, "threshold"_a, "is_down_transposed"_a, "is_exact_sparse"_a);
  nb::class_<PredictorHandle>(module, "NeuronPredictor")
      .def(nb::init<nb::object, nb::object, std::vector<Stage>>(), "fc1"_a.none(),
           "center"_a.none(), "stages"_a);
  module.def("ffn", &BoundFFN, "team"_a, "x"_a.noconvert(), "ffn"_a, "out"_a.noconvert(),
             "predictor"_a.none() = nb::none(), "predictor_input"_a.noconvert() = nb::none());
  module.def("ffn_active", &BoundFFNActive, "team"_a, "x"_a.noconvert(), "ffn"_a,
             "offsets"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert());
  module.def("predict", &BoundPredict, "team"_a, "x"_a.noconvert(), "predictor"_a);
}

}  // namespace powerinfer
