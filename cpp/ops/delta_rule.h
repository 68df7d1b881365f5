// The gated delta rule (arXiv 2412.06464) as Qwen3.5 uses it, from its convolution to its norm.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/op_context.h"
#include "ops/state.h"

namespace powerinfer {

/// Weights and sizes; see ops/operands.py, DeltaRule.
struct DeltaRuleView {
  const float* conv = nullptr;     // f32[NumChannels() * num_taps]
  const float* a = nullptr;        // f32[num_value_heads]
  const float* dt_bias = nullptr;  // f32[num_value_heads]
  const float* norm = nullptr;     // f32[value_dim]
  float eps = 0.0F;
  std::int64_t num_taps = 0;
  std::int64_t num_key_heads = 0;  ///< divides num_value_heads
  std::int64_t num_value_heads = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;

  std::int64_t NumKeys() const { return num_key_heads * key_dim; }
  std::int64_t NumValues() const { return num_value_heads * value_dim; }
  std::int64_t NumChannels() const { return 2 * NumKeys() + NumValues(); }
  std::int64_t NumColumns() const { return (num_taps - 1) * NumChannels(); }
  /// Numbers of a slot: columns of the convolution, then f32[value_dim, key_dim] of each head: the
  /// rows of a head's matrix are independent, and a sum runs along memory.
  std::int64_t StateSize() const { return NumColumns() + NumValues() * key_dim; }
};

struct DeltaRuleCall {
  DeltaRuleView rule;
  RowsView<const float> mixed;  ///< f32[num_tokens, NumChannels()]: q, k, v
  RowsView<const float> gate;   ///< f32[num_tokens, NumValues()]
  RowsView<const float> beta;   ///< f32[num_tokens, num_value_heads]
  RowsView<const float> alpha;  ///< likewise
  const StateLayer* state = nullptr;
  BatchView batch;
  RowsView<float> out;  ///< as `gate`, overlapping nothing
};

/// Formulas: ops/mixer_ops.py. A head of a sequence is one piece of work, its tokens one after the
/// other, so that bits depend on nothing but the sequence. Throws as StateSpans.
void DeltaRule(const OpContext& context, const DeltaRuleCall& call);

}  // namespace powerinfer
