// Head norms, rotary position embedding and the write into the KV cache, in one pass over q, k and
// v.
#pragma once

#include <cstdint>

#include "base/views.h"
#include "ops/kv_cache.h"
#include "ops/op_context.h"

namespace powerinfer {

/// Angles per position; see ops/protocol.py, RopeTable. cos == nullptr: no rotation.
struct RopeView {
  const float* cos = nullptr;   // f32[length, half]
  const float* sin = nullptr;   // f32[length, half]
  std::int64_t length = 0;      ///< positions there are angles for
  std::int64_t half = 0;        ///< rotary_dim / 2; 2 * half <= head_dim
  bool is_interleaved = false;  ///< pairs (2i, 2i + 1), else (i, i + half)
};

/// RMS norms of single heads; see ops/protocol.py, HeadNorms. nullptr: none.
struct HeadNormsView {
  const float* q = nullptr;  // f32[head_dim]
  const float* k = nullptr;  // f32[head_dim]
  float eps = 0.0F;
  const float* v = nullptr;  // f32[head_dim]
};

/// Normalises and rotates q f32[num_tokens, num_heads * head_dim] and k f32[num_tokens,
/// num_kv_heads * head_dim] in place, then writes k and v (as k) to the cache. v may be k: it is
/// read before k changes. Throws std::out_of_range if a position has no angles or no block; nothing
/// is written then.
void RopeAndStore(const OpContext& context, RowsView<float> q, RowsView<float> k,
                  RowsView<const float> v, KVCache& cache, const BatchView& batch,
                  const RopeView& rope, const HeadNormsView& norms = {});

/// The same of q alone, for layers that read the keys and values of another layer: heads of
/// `head_dim`, with the norm of q. Throws std::out_of_range if a position has no angles.
void RotateQueries(const OpContext& context, RowsView<float> q, std::int64_t head_dim,
                   const BatchView& batch, const RopeView& rope, const HeadNormsView& norms);

}  // namespace powerinfer
