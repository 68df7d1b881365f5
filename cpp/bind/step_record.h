// The calls of one step, recorded to run again without Python between them.
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
/// step of 7B in Q4_K, with nine calls a layer, that is 6 % of the time.
///
/// A call keeps everything it works on alive: arrays, weights, the batch. Arrays therefore keep
/// their addresses, and every run leaves its results where the first one did. All but destruction
/// and `Add` work without the GIL.
class StepRecord {
 public:
  using Call = std::function<void(const OpContext& context, FFNStats* stats)>;

  /// Records the calls of this thread from now on, until End.
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
  /// Marks the step as one that cannot run again: a result went to Python, which may then take
  /// another way.
  void Spoil() { is_complete_ = false; }

  /// True if the calls make up the whole step.
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
