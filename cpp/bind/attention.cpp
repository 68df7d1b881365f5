// Rotary embedding with the write into the KV cache, and attention over it.
#include "ops/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "bind/bind.h"
#include "bind/handles.h"
#include "ops/rope.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// Number of heads in rows of q. Raises ShapeError unless they are whole groups of the cache's KV
/// heads.
std::int64_t CheckedHeads(std::int64_t columns, const KVShape& shape) {
  const std::int64_t group_columns = shape.num_kv_heads * shape.head_dim;
  if (columns < 1 || columns % group_columns != 0) {
    RaiseShapeError("q has " + std::to_string(columns) + " columns, must have a multiple of " +
                    std::to_string(group_columns) + " (num_kv_heads * head_dim)");
  }
  return columns / shape.head_dim;
}

/// Weights of q and k, epsilon, weights of v or None.
using HeadNormsTuple =
    std::tuple<const VectorHandle*, const VectorHandle*, float, const VectorHandle*>;

HeadNormsView CheckedNorms(const std::optional<HeadNormsTuple>& norms, std::int64_t head_dim) {
  if (!norms) return {};
  const auto& [q, k, eps, v] = *norms;
  return {VectorHandle::Checked("the norm of q", q, head_dim),
          VectorHandle::Checked("the norm of k", k, head_dim), eps,
          VectorHandle::Checked("the norm of v", v, head_dim)};
}

/// The angles. Raises ShapeError if they turn more than a head.
RopeView CheckedRope(const RopeHandle* rope, std::int64_t head_dim) {
  const RopeView view = rope == nullptr ? RopeView{} : rope->view;
  if (2 * view.half > head_dim) {
    RaiseShapeError("the rotation table turns " + std::to_string(2 * view.half) +
                    " dimensions, a head has " + std::to_string(head_dim));
  }
  return view;
}

void BoundRopeAndStore(TeamHandle& team, const OutputRows& q, const OutputRows& k,
                       const InputRows& v, KVCache& cache, const BatchHandle& batch,
                       const RopeHandle* rope, const std::optional<HeadNormsTuple>& head_norms) {
  const KVShape& shape = cache.Shape();
  const std::int64_t num_tokens = batch.view.num_tokens;
  const std::int64_t columns = shape.num_kv_heads * shape.head_dim;
  const RowsView<float> queries = CheckedRows<float>("q", q, num_tokens, -1);
  const RowsView<float> keys = CheckedRows<float>("k", k, num_tokens, columns);
  const RowsView<const float> values = CheckedRows<const float>("v", v, num_tokens, columns);
  CheckedHeads(queries.columns, shape);
  const RopeView view = CheckedRope(rope, shape.head_dim);
  const HeadNormsView norms = CheckedNorms(head_norms, shape.head_dim);
  // Once recorded, a step runs with the tokens of another batch in the same place.
  const auto run = [q, k, v, queries, keys, values, layer = &cache, tokens = &batch, view,
                    norms](const OpContext& context) {
    RopeAndStore(context, queries, keys, values, *layer, tokens->view, view, norms);
  };
  const auto* q_norm = head_norms ? std::get<0>(*head_norms) : nullptr;
  const auto* k_norm = head_norms ? std::get<1>(*head_norms) : nullptr;
  const auto* v_norm = head_norms ? std::get<3>(*head_norms) : nullptr;
  team.RunRecorded(run, cache, batch, nb::find(rope), nb::find(q_norm), nb::find(k_norm),
                   nb::find(v_norm));
}

void BoundRotateQueries(TeamHandle& team, const OutputRows& q, std::int64_t head_dim,
                        const BatchHandle& batch, const RopeHandle* rope, const VectorHandle* norm,
                        float eps) {
  const RowsView<float> queries = CheckedRows<float>("q", q, batch.view.num_tokens, -1);
  if (head_dim < 1 || queries.columns % head_dim != 0) {
    RaiseShapeError("q has " + std::to_string(queries.columns) +
                    " columns, must have a multiple of " + std::to_string(head_dim));
  }
  const RopeView view = CheckedRope(rope, head_dim);
  const HeadNormsView norms{VectorHandle::Checked("the norm of q", norm, head_dim), nullptr, eps,
                            nullptr};
  const auto run = [q, queries, head_dim, tokens = &batch, view, norms](const OpContext& context) {
    RotateQueries(context, queries, head_dim, tokens->view, view, norms);
  };
  team.RunRecorded(run, batch, nb::find(rope), nb::find(norm));
}

/// window 0: every earlier position is visible; soft_cap 0: scores stay as they are.
void BoundAttention(TeamHandle& team, const InputRows& q, const KVCache& cache,
                    const BatchHandle& batch, float scale, std::int64_t window,
                    const OutputRows& out, const VectorHandle* sinks, float soft_cap) {
  AttentionCall call;
  call.q = CheckedRows<const float>("q", q, batch.view.num_tokens, -1);
  call.out = CheckedRows<float>("out", out, call.q.rows, call.q.columns);
  call.cache = &cache;
  call.batch = batch.view;
  call.num_heads = CheckedHeads(call.q.columns, cache.Shape());
  call.scale = scale;
  if (window < 0) throw nb::value_error("an attention window cannot be negative");
  call.window = window;
  call.sinks = VectorHandle::Checked("sinks", sinks, call.num_heads);
  if (!(soft_cap >= 0.0F)) throw nb::value_error("a soft cap of attention cannot be negative");
  call.soft_cap = soft_cap;
  const auto run = [q, out, call, tokens = &batch](const OpContext& context) {
    AttentionCall now = call;
    now.batch = tokens->view;
    Attention(context, now);
  };
  team.RunRecorded(run, cache, batch, nb::find(sinks));
}

}  // namespace

void BindAttention(nb::module_& module) {
  module.def("rope_and_store", &BoundRopeAndStore, "team"_a, "q"_a.noconvert(), "k"_a.noconvert(),
             "v"_a.noconvert(), "cache"_a, "batch"_a, "rope"_a.none(), "head_norms"_a = nb::none());
  module.def("rotate_queries", &BoundRotateQueries, "team"_a, "q"_a.noconvert(), "head_dim"_a,
             "batch"_a, "rope"_a.none(), "norm"_a.none(), "eps"_a);
  module.def("attention", &BoundAttention, "team"_a, "q"_a.noconvert(), "cache"_a, "batch"_a,
             "scale"_a, "window"_a, "out"_a.noconvert(), "sinks"_a.none() = nb::none(),
             "soft_cap"_a = 0.0F);
}

}  // namespace powerinfer
