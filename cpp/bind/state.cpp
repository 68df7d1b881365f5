// Layers of states and the mixers that keep them.
#include "ops/state.h"

#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "bind/bind.h"
#include "bind/handles.h"
#include "ops/delta_rule.h"
#include "ops/selective_scan.h"
#include "ops/short_conv.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

void CheckTaps(std::int64_t num_taps) {
  if (num_taps >= 1 && num_taps <= kMaxTaps) return;
  RaiseShapeError("a convolution has " + std::to_string(num_taps) + " taps, must have 1 to " +
                  std::to_string(kMaxTaps));
}

void CheckSize(const StateLayer& state, std::int64_t wanted) {
  if (state.Size() == wanted) return;
  RaiseShapeError("a slot of states has " + std::to_string(state.Size()) + " numbers, must have " +
                  std::to_string(wanted));
}

/// As VectorHandle::Checked of a vector that may not be missing.
const float* Needed(const char* what, const VectorHandle* vector, std::int64_t length) {
  if (vector == nullptr) RaiseShapeError(std::string(what) + " is missing");
  return VectorHandle::Checked(what, vector, length);
}

void BoundShortConv(TeamHandle& team, const InputRows& x, const VectorHandle& weight,
                    std::int64_t num_taps, const StateLayer& state, const BatchHandle& batch,
                    const OutputRows& out) {
  const std::int64_t d = Size(out, 1);
  const RowsView<const float> input =
      CheckedRows<const float>("x", x, batch.view.num_tokens, 3 * d);
  const RowsView<float> output = CheckedRows<float>("out", out, input.rows, d);
  CheckTaps(num_taps);
  const float* taps = VectorHandle::Checked("the convolution", &weight, d * num_taps);
  CheckSize(state, (num_taps - 1) * d);
  // Once recorded, a step runs with the tokens of another batch in the same place.
  const auto run = [x, out, input, taps, num_taps, layer = &state, tokens = &batch,
                    output](const OpContext& context) {
    ShortConv(context, input, taps, num_taps, *layer, tokens->view, output);
  };
  team.RunRecorded(run, weight, state, batch);
}

/// conv, a, dt_bias, norm.
using RuleVectors =
    std::tuple<const VectorHandle*, const VectorHandle*, const VectorHandle*, const VectorHandle*>;
/// num_taps, num_key_heads, num_value_heads, key_dim, value_dim.
using RuleSizes = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

DeltaRuleView CheckedRule(const RuleVectors& vectors, float eps, const RuleSizes& sizes) {
  DeltaRuleView rule;
  std::tie(rule.num_taps, rule.num_key_heads, rule.num_value_heads, rule.key_dim, rule.value_dim) =
      sizes;
  CheckTaps(rule.num_taps);
  if (rule.num_key_heads < 1 || rule.num_value_heads < 1 || rule.key_dim < 1 ||
      rule.value_dim < 1 || rule.num_value_heads % rule.num_key_heads != 0) {
    RaiseShapeError("a delta rule has " + std::to_string(rule.num_value_heads) +
                    " value heads, must have a multiple of its " +
                    std::to_string(rule.num_key_heads) + " key heads, none of them empty");
  }
  const auto& [conv, a, dt_bias, norm] = vectors;
  rule.conv = Needed("the convolution", conv, rule.NumChannels() * rule.num_taps);
  rule.a = Needed("a", a, rule.num_value_heads);
  rule.dt_bias = Needed("dt_bias", dt_bias, rule.num_value_heads);
  rule.norm = Needed("the norm", norm, rule.value_dim);
  rule.eps = eps;
  return rule;
}

void BoundDeltaRule(TeamHandle& team, const InputRows& mixed, const InputRows& gate,
                    const InputRows& beta, const InputRows& alpha, const RuleVectors& vectors,
                    float eps, const RuleSizes& sizes, const StateLayer& state,
                    const BatchHandle& batch, const OutputRows& out) {
  DeltaRuleCall call;
  call.rule = CheckedRule(vectors, eps, sizes);
  const std::int64_t rows = batch.view.num_tokens;
  const std::int64_t heads = call.rule.num_value_heads;
  call.mixed = CheckedRows<const float>("mixed", mixed, rows, call.rule.NumChannels());
  call.gate = CheckedRows<const float>("gate", gate, rows, call.rule.NumValues());
  call.beta = CheckedRows<const float>("beta", beta, rows, heads);
  call.alpha = CheckedRows<const float>("alpha", alpha, rows, heads);
  call.out = CheckedRows<float>("out", out, rows, call.rule.NumValues());
  call.state = &state;
  CheckSize(state, call.rule.StateSize());
  const auto run = [mixed, gate, beta, alpha, out, call,
                    tokens = &batch](const OpContext& context) {
    DeltaRuleCall now = call;
    now.batch = tokens->view;
    DeltaRule(context, now);
  };
  const auto& [conv, a, dt_bias, norm] = vectors;
  team.RunRecorded(run, state, batch, nb::find(conv), nb::find(a), nb::find(dt_bias),
                   nb::find(norm));
}

/// conv, conv_bias or None, a, skip, dt_bias, norm.
using ScanVectors = std::tuple<const VectorHandle*, const VectorHandle*, const VectorHandle*,
                               const VectorHandle*, const VectorHandle*, const VectorHandle*>;
/// num_taps, num_groups, num_heads, head_dim, state_dim.
using ScanSizes = RuleSizes;

SelectiveScanView CheckedScan(const ScanVectors& vectors, float eps, const ScanSizes& sizes) {
  SelectiveScanView scan;
  std::tie(scan.num_taps, scan.num_groups, scan.num_heads, scan.head_dim, scan.state_dim) = sizes;
  CheckTaps(scan.num_taps);
  if (scan.num_groups < 1 || scan.num_heads < 1 || scan.head_dim < 1 || scan.state_dim < 1 ||
      scan.num_heads % scan.num_groups != 0) {
    RaiseShapeError("a selective scan has " + std::to_string(scan.num_heads) +
                    " heads, must have a multiple of its " + std::to_string(scan.num_groups) +
                    " groups, none of them empty");
  }
  const auto& [conv, conv_bias, a, skip, dt_bias, norm] = vectors;
  scan.conv = Needed("the convolution", conv, scan.NumChannels() * scan.num_taps);
  scan.conv_bias =
      VectorHandle::Checked("the bias of the convolution", conv_bias, scan.NumChannels());
  scan.a = Needed("a", a, scan.num_heads);
  scan.skip = Needed("skip", skip, scan.num_heads);
  scan.dt_bias = Needed("dt_bias", dt_bias, scan.num_heads);
  scan.norm = Needed("the norm", norm, scan.NumInner());
  scan.eps = eps;
  return scan;
}

void BoundSelectiveScan(TeamHandle& team, const InputRows& x, const ScanVectors& vectors, float eps,
                        const ScanSizes& sizes, const StateLayer& state, const BatchHandle& batch,
                        const OutputRows& out) {
  SelectiveScanCall call;
  call.scan = CheckedScan(vectors, eps, sizes);
  call.input = CheckedRows<const float>("x", x, batch.view.num_tokens, call.scan.NumInputs());
  call.out = CheckedRows<float>("out", out, call.input.rows, call.scan.NumInner());
  call.state = &state;
  CheckSize(state, call.scan.StateSize());
  const auto run = [x, out, call, tokens = &batch](const OpContext& context) {
    SelectiveScanCall now = call;
    now.batch = tokens->view;
    SelectiveScan(context, now);
  };
  const auto& [conv, conv_bias, a, skip, dt_bias, norm] = vectors;
  team.RunRecorded(run, state, batch, nb::find(conv), nb::find(conv_bias), nb::find(a),
                   nb::find(skip), nb::find(dt_bias), nb::find(norm));
}

/// x *= sigmoid(g).
void BoundGate(TeamHandle& team, const OutputRows& x, const InputRows& g) {
  const RowsView<float> values = CheckedRows<float>("x", x, -1, -1);
  const RowsView<const float> gates = CheckedRows<const float>("g", g, values.rows, values.columns);
  team.RunRecorded(
      [x, g, values, gates](const OpContext& context) { Gate(context, values, gates); });
}

}  // namespace

void BindState(nb::module_& module) {
  nb::class_<StateLayer>(module, "StateLayer")
      .def(nb::init<std::int64_t, std::int64_t>(), "num_slots"_a, "size"_a)
      .def_prop_ro("num_slots", &StateLayer::NumSlots)
      .def_prop_ro("size", &StateLayer::Size)
      .def_prop_ro("nbytes", &StateLayer::NumBytes);
  module.def("short_conv", &BoundShortConv, "team"_a, "x"_a.noconvert(), "weight"_a, "num_taps"_a,
             "state"_a, "batch"_a, "out"_a.noconvert());
  module.def("delta_rule", &BoundDeltaRule, "team"_a, "mixed"_a.noconvert(), "gate"_a.noconvert(),
             "beta"_a.noconvert(), "alpha"_a.noconvert(), "vectors"_a, "eps"_a, "sizes"_a,
             "state"_a, "batch"_a, "out"_a.noconvert());
  module.def("selective_scan", &BoundSelectiveScan, "team"_a, "x"_a.noconvert(), "vectors"_a,
             "eps"_a, "sizes"_a, "state"_a, "batch"_a, "out"_a.noconvert());
  module.def("gate", &BoundGate, "team"_a, "x"_a.noconvert(), "g"_a.noconvert());
}

}  // namespace powerinfer
