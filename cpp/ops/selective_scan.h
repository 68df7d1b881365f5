// The selective scan of Mamba-2 (arXiv 2405.21060), from its convolution to its norm.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "ops/state.h"

namespace powerinfer {

/// Weights and sizes; see ops/operands.py, SelectiveScan.
struct SelectiveScanView {
  const float* conv = nullptr;       // f32[NumChannels() * num_taps]
  const float* conv_bias = nullptr;  // f32[NumChannels()] or null
  const float* a = nullptr;          // f32[num_heads]
  const float* skip = nullptr;       // f32[num_heads]
  const float* dt_bias = nullptr;    // f32[num_heads]
  const float* norm = nullptr;       // f32[NumInner()]
  float eps = 0.0F;
  std::int64_t num_taps = 0;
  std::int64_t num_groups = 0;  ///< divides num_heads
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t state_dim = 0;

  std::int64_t NumInner() const { return num_heads * head_dim; }
  std::int64_t NumChannels() const { return NumInner() + 2 * num_groups * state_dim; }
  std::int64_t NumInputs() const { return NumInner() + NumChannels() + num_heads; }
  std::int64_t NumColumns() const { return (num_taps - 1) * NumChannels(); }
  /// Numbers of a slot: columns of the convolution, then f32[head_dim, state_dim] of each head.
  std::int64_t StateSize() const { return NumColumns() + NumInner() * state_dim; }
};

struct SelectiveScanCall {
  SelectiveScanView scan;
  RowsView<const float> input;  ///< f32[num_tokens, NumInputs()]: z, x, b, c, dt
  const StateLayer* state = nullptr;
  BatchView batch;
  RowsView<float> out;  ///< f32[num_tokens, NumInner()], overlapping nothing
};

/// Formulas: ops/mixer_ops.py. A head of a sequence is one piece of work, its tokens one after the
/// other, so that bits depend on nothing but the sequence. Throws as StateSpans.
void SelectiveScan(const OpContext& context, const SelectiveScanCall& call);

}  // namespace powerinfer
