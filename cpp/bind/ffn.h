// Handles of feed-forward blocks.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "bind/arrays.h"
#include "bind/handles.h"
#include "bind/lazy_experts.h"
#include "sparse/ffn.h"

namespace powerinfer {

struct RouterHandle {
  RouterHandle(nanobind::object matrix, nanobind::object bias, const std::string& rule,
               std::int64_t num_used, bool is_normalized, nanobind::object selection_bias,
               float scale, nanobind::object expert_scale);

  RouterView view;
  std::array<nanobind::object, 4> objects;  // keep the weights alive
};

/// One matrix with its bias; the matrix is None for the gate of an ungated block.
using Part = std::tuple<nanobind::object, nanobind::object>;

/// Counts of the last call with decode rows. Readers do not wait for the team, so the numbers may
/// belong to two calls.
class LastDecode {
 public:
  /// rows: decode rows of the call; a call without any is ignored.
  void Take(std::int64_t rows, std::int64_t batches, const FFNStats& stats) {
    if (rows == 0) return;
    numbers_[0].store(rows, std::memory_order_relaxed);
    numbers_[1].store(batches, std::memory_order_relaxed);
    numbers_[2].store(stats.active, std::memory_order_relaxed);
    numbers_[3].store(stats.united, std::memory_order_relaxed);
  }
  /// rows, batches, active, united; zeros before the first call.
  std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t> Numbers() const {
    return {numbers_[0], numbers_[1], numbers_[2], numbers_[3]};
  }

 private:
  std::array<std::atomic<std::int64_t>, 4> numbers_{};
};

struct FFNHandle {
  /// router: None, or a RouterHandle, which makes this a mixture of experts. dip: see Activation.
  FFNHandle(Part gate, Part up, Part down, const std::string& activation, float threshold,
            bool is_down_transposed, bool is_exact_sparse, nanobind::object router,
            std::tuple<float, float> dip);

  FFNView view;
  LazyExperts lazy;
  nanobind::object router_object;
  std::array<Part, 3> parts;  // keeps the weights alive
  mutable LastDecode last_decode;
};

/// The input of a block's router, f32[num_tokens, its columns]: router_input if there is one, else
/// x, as for blocks without a router. Raises ShapeError for another width.
RowsView<const float> CheckedRouterInput(const std::optional<InputRows>& router_input,
                                         RowsView<const float> x, const FFNHandle& ffn);

}  // namespace powerinfer
