#include "bind/step_record.h"

#include "bind/bind.h"
#include "bind/handles.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

void Begin(StepRecord& record, TeamHandle& team) {
  if (team.record != nullptr) throw nb::value_error("the team is recording another step");
  record.Begin();
  team.record = &record;
}

void End(StepRecord& record, TeamHandle& team) {
  record.End();
  if (team.record == &record) team.record = nullptr;
}

/// Runs the recorded calls with the tokens of `batch` in place of those of `recorded`, the batch
/// they were recorded with.
FFNStats Run(const StepRecord& record, TeamHandle& team, BatchHandle& recorded,
             const BatchHandle& batch) {
  if (!record.IsComplete()) throw nb::value_error("the step cannot be run again");
  CheckShape("batch", batch.view.num_tokens, 1, recorded.view.num_tokens, 1);
  if (batch.view.is_prompt != nullptr) throw nb::value_error("prompts are not recorded");
  FFNStats stats;
  const auto run = [&](const OpContext& context) {
    // Meanwhile no other thread uses the team, or what was recorded for it.
    recorded.view = batch.view;
    record.Run(context, &stats);
  };
  const ReleasedGil released;
  team.shared.Run(run);
  return stats;
}

}  // namespace

void BindStepRecord(nb::module_& module) {
  nb::class_<StepRecord>(module, "StepRecord")
      .def(nb::init<>())
      .def("begin", &Begin, "team"_a)
      .def("end", &End, "team"_a)
      .def_prop_ro("is_complete", &StepRecord::IsComplete)
      .def("run", &Run, "team"_a, "recorded"_a, "batch"_a);
}

}  // namespace powerinfer
