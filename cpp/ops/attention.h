// Causal grouped-query attention over the blocks of a KV cache.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/kv_cache.h"
#include "ops/op_context.h"

namespace powerinfer {

/// One attention operation of one layer; the step's keys and values are in the cache already.
struct AttentionCall {
  RowsView<const float> q;  ///< f32[num_tokens, num_heads * head_dim]
  RowsView<float> out;      ///< as q, overlapping nothing
  const KVCache* cache = nullptr;
  BatchView batch;
  std::int64_t num_heads = 0;  ///< a multiple of the cache's num_kv_heads
  float scale = 1.0F;          ///< of the scores, before the softmax
  std::int64_t window = 0;     ///< positions a token sees, itself included; 0: all
  /// f32[num_heads], of each head a score that takes part in the softmax and has no value
  /// (gpt-oss); null: none
  const float* sinks = nullptr;
  float soft_cap = 0.0F;  ///< scaled scores become soft_cap * tanh(score / soft_cap); 0: they stay

  std::int64_t GroupSize() const { return num_heads / cache->Shape().num_kv_heads; }
};

/// A token at position p sees positions max(0, p - window + 1) .. p of its sequence; query head h
/// uses KV head h / GroupSize(). Positions are processed in fixed chunks whose partial softmaxes
/// are merged in order, so the bits do not depend on the number of threads. A sink joins at the
/// end.
///
/// Prompt tokens always go through the blocked matrix product (if it takes heads of this size),
/// even a single one; decode tokens never do, however many there are and however many heads share a
/// KV head: their dot products read keys and values as they are, once for all heads of a group. So
/// a token's bits depend on its kind and on what it sees, not on the other tokens of the batch.
/// Throws std::out_of_range if a visible position has no block.
void Attention(const OpContext& context, const AttentionCall& call);

}  // namespace powerinfer
