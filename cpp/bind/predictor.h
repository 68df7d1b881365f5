// Handles of neuron predictors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "bind/handles.h"
#include "bind/lazy_experts.h"
#include "sparse/ffn.h"
#include "sparse/predictor.h"

namespace powerinfer {

/// The view of a Matrix; empty for None.
MatrixView ViewOf(const nanobind::object& matrix);

/// The numbers of a Vector, which must have `length` entries; null for None. Raises ShapeError.
const float* BiasOf(const std::string& what, const nanobind::object& bias, std::int64_t length);

/// Matrix, bias (or None) and threshold.
using Stage = std::tuple<nanobind::object, nanobind::object, float>;

struct PredictorHandle {
  PredictorHandle(nanobind::object fc1, nanobind::object center, std::vector<Stage> stages,
                  std::int64_t num_experts);

  /// Raises ShapeError unless the predictor takes inputs of this size.
  void CheckInput(std::int64_t hidden_size) const;
  /// Raises ShapeError unless the predictor belongs to the block.
  void CheckBlock(const FFNView& ffn) const;

  PredictorView view;
  LazyExperts lazy;
  std::int64_t center_size = 0;
  nanobind::object fc1_object, center_object;  // keep the weights alive
  std::vector<Stage> stage_objects;
};

}  // namespace powerinfer
