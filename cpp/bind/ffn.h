// Feed-forward blocks that Python holds on to.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <tuple>

#include "bind/handles.h"
#include "bind/lazy_experts.h"
#include "sparse/ffn.h"

namespace powerinfer {

struct RouterHandle {
  RouterHandle(nanobind::object matrix, nanobind::object bias, const std::string& rule,
               std::int64_t num_used, bool is_normalized);

  RouterView view;
  std::array<nanobind::object, 2> objects;  // keep the weights alive
};

/// One matrix with its bias; the matrix is None for the gate of an ungated block.
using Part = std::tuple<nanobind::object, nanobind::object>;

struct FFNHandle {
  /// router: None, or a RouterHandle, which makes this a mixture of experts.
  FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
            bool is_down_transposed, bool is_exact_sparse, nanobind::object router);

  FFNView view;
  LazyExperts lazy;
  nanobind::object router_object;
  std::array<Part, 3> parts;  // keeps the weights alive
};

}  // namespace powerinfer
