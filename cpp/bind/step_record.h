// The calls of one step, kept to be run again without Python between them.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "ops/op_context.h"
#include "sparse/ffn.h"

namespace powerinfer {

/// Between two calls from Python the threads of a team fall asleep and memory is idle: in a decode
/// step of seven calls a layer that is a tenth of the time.
///
/// A call holds on to everything it works on: arrays, weights, the batch. Arrays therefore keep
/// their memory and the results of a run stand where those of the first did. All but destruction
/// and `Add` work without the GIL.
class StepRecord {
 public:
  using Call = std::function<void(const OpContext& context, FFNStats* stats)>;

  /// Calls of this thread are added from now on, until End.
  void Begin() {
    thread_ = std::this_thread::get_id();
    is_complete_ = true;
  }
  void End() { thread_ = {}; }
  bool IsRecordingHere() const { return thread_ == std::this_thread::get_id(); }

  void Add(Call call, std::vector<nanobind::object> kept) {
    calls_.push_back(std::move(call));
    kept_.insert(kept_.end(), kept.begin(), kept.end());
  }
  /// What ran gave its result to Python, which decides by it: another step may take another way.
  void Spoil() { is_complete_ = false; }

  /// Whether running the calls is running the step.
  bool IsComplete() const { return is_complete_ && !calls_.empty(); }

  void Run(const OpContext& context, FFNStats* stats) const {
    for (const Call& call : calls_) call(context, stats);
  }

 private:
  std::vector<Call> calls_;
  std::vector<nanobind::object> kept_;
  std::thread::id thread_;
  bool is_complete_ = false;
};

}  // namespace powerinfer
