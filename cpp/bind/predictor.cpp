#include "bind/predictor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "base/rounding.h"
#include "bind/bind.h"
#include "bind/row_kinds.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// Raises ShapeError unless `columns` is `size` or `size` padded to whole blocks.
void CheckColumns(const std::string& what, std::int64_t columns, std::int64_t size) {
  const std::int64_t padded = RoundUp(size, kPredictorPadding);
  if (columns >= size && columns <= padded) return;
  RaiseShapeError(what + " has " + std::to_string(columns) + " columns, must have " +
                  std::to_string(size) + " (up to " + std::to_string(padded) + " with padding)");
}

std::string StageName(std::size_t i) { return "score stage " + std::to_string(i + 1); }

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

nb::object BoundPredict(TeamHandle& team, const InputRows& x, const PredictorHandle& predictor,
                        const RowMarks& is_prompt) {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  predictor.CheckInput(input.columns);
  predictor.lazy.FillAll(team);
  const bool* marks = CheckedMarks(is_prompt, input.rows);
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int32_t> ids;
  PredictorStats stats;
  const auto run = [&](const OpContext& context, std::int64_t first, std::int64_t count) {
    std::vector<std::int64_t> ends;
    std::vector<std::int32_t> found;
    PredictNeurons(context, input.Some(first, count), predictor.view, &ends, &found, &stats);
    const auto begin = static_cast<std::int64_t>(ids.size());
    for (std::size_t i = 1; i < ends.size(); ++i) offsets.push_back(begin + ends[i]);
    ids.insert(ids.end(), found.begin(), found.end());
  };
  team.Run([&](const OpContext& context) { ForRowKinds(context, marks, input.rows, run); });
  return nb::make_tuple(ToNumpy(std::move(offsets)), ToNumpy(std::move(ids)));
}

}  // namespace

MatrixView ViewOf(const nb::object& matrix) {
  return matrix.is_none() ? MatrixView{} : nb::cast<const MatrixHandle&>(matrix).view;
}

const float* BiasOf(const std::string& what, const nb::object& bias, std::int64_t length) {
  if (bias.is_none()) return nullptr;
  return VectorHandle::Checked(what.c_str(), &nb::cast<const VectorHandle&>(bias), length);
}

PredictorHandle::PredictorHandle(nb::object fc1, nb::object center, std::vector<Stage> stages,
                                 std::int64_t num_experts)
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
  view.num_experts = num_experts;
  if (num_experts < 1 || (view.HasHiddenLayer() && view.fc1.rows % num_experts != 0)) {
    RaiseShapeError("fc1 has " + std::to_string(view.fc1.rows) +
                    " rows, must have as many for each of " + std::to_string(num_experts) +
                    " experts");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [matrix, bias, threshold] = stage_objects[i];
    ScoreStage& stage = view.stages[i];
    stage.matrix = nb::cast<const MatrixHandle&>(matrix).view;
    const std::int64_t neurons = view.stages[0].matrix.rows;
    if (neurons % num_experts != 0) {
      RaiseShapeError(StageName(i) + " has " + std::to_string(neurons) +
                      " rows, must have as many for each of " + std::to_string(num_experts) +
                      " experts");
    }
    if (stage.matrix.rows != neurons) {
      RaiseShapeError(StageName(i) + " has " + std::to_string(stage.matrix.rows) +
                      " rows, must have one per neuron as the first: " + std::to_string(neurons));
    }
    if (view.HasHiddenLayer()) CheckColumns(StageName(i), stage.matrix.columns, view.Rank());
    stage.bias = BiasOf("bias of " + StageName(i), bias, neurons);
    stage.threshold = threshold;
  }
  if (!center_object.is_none()) {
    const auto& vector = nb::cast<const VectorHandle&>(center_object);
    view.center = vector.Data();
    center_size = vector.Length();
    CheckInput(center_size);
  }
  lazy.Add(fc1_object);
  for (const Stage& stage : stage_objects) lazy.Add(std::get<0>(stage));
  view.filler = lazy.Filler();
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
  lazy.CheckExperts("the predictor", ffn);
  if (view.HasExpertLayers() && view.num_experts != ffn.NumExperts()) {
    RaiseShapeError("the predictor has hidden layers for " + std::to_string(view.num_experts) +
                    " experts, the feed-forward block has " + std::to_string(ffn.NumExperts()));
  }
  if (view.IntermediateSize() == ffn.IntermediateSize()) return;
  RaiseShapeError("the predictor scores " + std::to_string(view.IntermediateSize()) +
                  " neurons, the feed-forward block has " + std::to_string(ffn.IntermediateSize()));
}

void BindPredictor(nb::module_& module) {
  nb::class_<PredictorHandle>(module, "NeuronPredictor")
      .def(nb::init<nb::object, nb::object, std::vector<Stage>, std::int64_t>(), "fc1"_a.none(),
           "center"_a.none(), "stages"_a, "num_experts"_a = 1);
  module.def("predict", &BoundPredict, "team"_a, "x"_a.noconvert(), "predictor"_a,
             "is_prompt"_a.noconvert() = nb::none());
}

}  // namespace powerinfer
