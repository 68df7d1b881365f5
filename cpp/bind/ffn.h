// Feed-forward blocks that Python holds on to.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "bind/handles.h"
#include "sparse/ffn.h"

namespace powerinfer {

/// One matrix with its bias; the matrix is None for the gate of an ungated block.
using Part = std::tuple<nanobind::object, nanobind::object>;

struct FFNHandle {
  FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
            bool is_down_transposed, bool is_exact_sparse);

  FFNView view;
  std::array<Part, 3> parts;  // keeps the weights alive
};

}  // namespace powerinfer
