// The CPU half of feed-forward blocks on two devices, and rows of weights for the other device.
#include "hybrid/exchange.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.h"
#include "bind/ffn.h"
#include "bind/handles.h"
#include "bind/predictor.h"
#include "hybrid/encoded_rows.h"
#include "hybrid/signal_waiter.h"
#include "quant/superblock.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

using Words = Array<const std::uint32_t, 2>;
using Flags = Array<std::uint32_t, 2>;
using Status = Array<std::int32_t, 1>;

/// Arrays shared by both devices, kept alive. Those that Python passed as None are not valid.
struct ExchangeArrays {
  InputRows x;
  Words cold;
  OutputRows y;
  Flags flags;
  Status status;
  InputRows predictor_input;
  InputRows router_input;
  InputRows expert_weights;

  ExchangeBuffers Checked() const;
};

struct ExchangeHandle {
  ExchangeHandle(nb::object team, ExchangeArrays shared, double watchdog_s);

  std::int64_t AddLayer(nb::object ffn, nb::object predictor);

  nb::object team_object;  // this and the arrays keep alive what `exchange` points to
  ExchangeArrays arrays;
  std::vector<nb::object> weights;
  Exchange exchange;
  std::optional<SignalWaiter> waiter;  // destroyed first
};

ExchangeBuffers ExchangeArrays::Checked() const {
  const RowsView<const float> input = CheckedRows<const float>("x", x, -1, -1);
  if (input.rows < 1) RaiseShapeError("x must have at least one row");
  CheckShape("status", 1, Size(status, 0), 1, 1);
  RowsView<const float> scored;
  if (predictor_input.is_valid()) {
    scored =
        CheckedRows<const float>("predictor_input", predictor_input, input.rows, input.columns);
  }
  RowsView<const float> routed;
  if (router_input.is_valid()) {
    routed = CheckedRows<const float>("router_input", router_input, input.rows, input.columns);
  }
  RowsView<const float> shares;
  if (expert_weights.is_valid()) {
    shares = CheckedRows<const float>("expert_weights", expert_weights, input.rows, -1);
  }
  return {input,
          CheckedRows<const std::uint32_t>("cold", cold, input.rows, -1),
          CheckedRows<float>("y", y, input.rows, input.columns),
          status.data(),
          scored,
          routed,
          shares};
}

ExchangeHandle::ExchangeHandle(nb::object team, ExchangeArrays shared, double watchdog_s)
    : team_object(std::move(team)),
      arrays(std::move(shared)),
      exchange(nb::cast<TeamHandle&>(team_object).shared, arrays.Checked()) {
  const Flags& flags = arrays.flags;
  if (!flags.is_valid()) return;
  CheckShape("flags", Size(flags, 0), Size(flags, 1), 2, -1);
  // Beyond a day a number of nanoseconds might not fit.
  if (!(watchdog_s > 0.0 && watchdog_s <= 86400.0)) {
    throw nb::value_error("watchdog_s must be positive and at most a day");
  }
  const ExchangeFlags words{flags.data(), flags.data() + flags.shape(1), Size(flags, 1)};
  waiter.emplace(exchange, words, std::chrono::nanoseconds(std::llround(watchdog_s * 1e9)));
}

std::int64_t ExchangeHandle::AddLayer(nb::object ffn, nb::object predictor) {
  const FFNView& view = nb::cast<const FFNHandle&>(ffn).view;
  const PredictorView* own = nullptr;
  if (!predictor.is_none()) {
    if (!arrays.predictor_input.is_valid()) {
      throw nb::value_error("a layer cannot predict in an exchange without predictor_input");
    }
    const auto& handle = nb::cast<const PredictorHandle&>(predictor);
    handle.CheckBlock(view);
    handle.CheckInput(Size(arrays.predictor_input, 1));
    own = &handle.view;
  }
  try {
    const std::int64_t layer = exchange.AddLayer(view, own);
    weights.push_back(std::move(ffn));
    weights.push_back(std::move(predictor));
    return layer;
  } catch (const std::invalid_argument& error) {
    RaiseShapeError(error.what());
  }
}

void Run(ExchangeHandle& handle, std::int64_t layer, std::int64_t num_tokens) {
  const ReleasedGil released;
  handle.exchange.Run(layer, num_tokens);
}

void KeepAwake(ExchangeHandle& handle, bool is_awake) {
  const ReleasedGil released;
  handle.exchange.KeepAwake(is_awake);
}

[[noreturn]] void RaiseDeviceError(const std::string& message) {
  const nb::object type = nb::module_::import_("powerinfer.errors").attr("DeviceError");
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

void RaiseFailure(ExchangeHandle& handle) {
  const std::optional<std::string> failure = handle.exchange.TakeFailure();
  if (failure) RaiseDeviceError("the CPU half of a step failed: " + *failure);
}

SignalWaiter& WaiterOf(ExchangeHandle& handle) {
  if (!handle.waiter) throw nb::value_error("an exchange without flags has no steps; use run");
  return *handle.waiter;
}

void StartStep(ExchangeHandle& handle, const std::vector<std::int64_t>& layers,
               std::int64_t num_tokens) {
  SignalWaiter& waiter = WaiterOf(handle);
  try {
    waiter.StartStep(layers, num_tokens);
  } catch (const std::runtime_error& error) {
    RaiseDeviceError(error.what());
  }
}

void FinishStep(ExchangeHandle& handle) {
  SignalWaiter& waiter = WaiterOf(handle);
  try {
    const ReleasedGil released;
    waiter.FinishStep();
  } catch (const std::runtime_error& error) {
    RaiseDeviceError(error.what());
  }
  RaiseFailure(handle);
}

void AbortStep(ExchangeHandle& handle) {
  SignalWaiter& waiter = WaiterOf(handle);
  try {
    const ReleasedGil released;
    waiter.AbortStep();
  } catch (const std::runtime_error& error) {
    RaiseDeviceError(error.what());
  }
}

using RowBytesOut = Array<std::uint8_t, 2>;

void BoundEncodedRows(TeamHandle& team, const MatrixHandle& matrix,
                      const Array<const std::int32_t, 1>& ids, const RowBytesOut& out) {
  const std::int64_t row_bytes = RowBytes(FileFormat(matrix.view.format), matrix.view.columns);
  CheckShape("out", Size(out, 0), Size(out, 1), Size(ids, 0), row_bytes);
  const std::span<const std::int32_t> rows(ids.data(), ids.shape(0));
  team.Run([&](const OpContext& context) {
    if (matrix.lazy != nullptr) matrix.lazy->FillRows(context, rows);
    CopyEncodedRows(context.team, matrix.view, rows, out.data());
  });
}

}  // namespace

void BindExchange(nb::module_& module) {
  nb::class_<ExchangeHandle>(module, "Exchange")
      .def(
          "__init__",
          [](ExchangeHandle* self, nb::object team, InputRows x, Words cold, OutputRows y,
             Flags flags, Status status, double watchdog_s, InputRows predictor_input,
             InputRows router_input, InputRows expert_weights) {
            new (self) ExchangeHandle(
                std::move(team),
                {std::move(x), std::move(cold), std::move(y), std::move(flags), std::move(status),
                 std::move(predictor_input), std::move(router_input), std::move(expert_weights)},
                watchdog_s);
          },
          "team"_a, "x"_a.noconvert(), "cold"_a.noconvert(), "y"_a.noconvert(),
          "flags"_a.noconvert().none(), "status"_a.noconvert(), "watchdog_s"_a = 20.0,
          "predictor_input"_a.noconvert().none() = nb::none(),
          "router_input"_a.noconvert().none() = nb::none(),
          "expert_weights"_a.noconvert().none() = nb::none())
      .def("add_layer", &ExchangeHandle::AddLayer, "ffn"_a, "predictor"_a.none() = nb::none())
      .def_prop_ro("num_layers", [](const ExchangeHandle& h) { return h.exchange.NumLayers(); })
      .def_prop_ro("max_tokens", [](const ExchangeHandle& h) { return h.exchange.MaxTokens(); })
      .def("run", &Run, "layer"_a, "num_tokens"_a)
      .def("keep_awake", &KeepAwake, "is_awake"_a)
      .def("stats", [](ExchangeHandle& h) { return h.exchange.TakeStats(); })
      .def("raise_failure", &RaiseFailure)
      .def("start_step", &StartStep, "layers"_a, "num_tokens"_a)
      .def("finish_step", &FinishStep)
      .def("abort_step", &AbortStep);
  module.def("encoded_rows", &BoundEncodedRows, "team"_a, "matrix"_a, "ids"_a.noconvert(),
             "out"_a.noconvert());
  module.def(
      "encoded_format",
      [](const MatrixHandle& matrix) {
        return std::string(InfoOf(FileFormat(matrix.view.format)).name);
      },
      "matrix"_a);
}

}  // namespace powerinfer
