#include "ops/rope.h"

#include <stdexcept>
#include <string>

#include "base/row_chunks.h"
#include "ops/norm.h"

namespace powerinfer {
namespace {

void RotateHead(float* head, const float* cos, const float* sin, const RopeView& rope) {
  const std::int64_t step = rope.is_interleaved ? 2 : 1;
  const std::int64_t distance = rope.is_interleaved ? 1 : rope.half;
  for (std::int64_t i = 0; i < rope.half; ++i) {
    float& a = head[i * step];
    float& b = head[i * step + distance];
    const float rotated = a * cos[i] - b * sin[i];
    b = a * sin[i] + b * cos[i];
    a = rotated;
  }
}

void RotateRow(float* row, std::int64_t columns, std::int64_t head_dim, std::int64_t position,
               const RopeView& rope) {
  const float* cos = rope.cos + position * rope.half;
  const float* sin = rope.sin + position * rope.half;
  for (std::int64_t i = 0; i < columns; i += head_dim) RotateHead(row + i, cos, sin, rope);
}

/// weight: f32[head_dim]; null: no norm.
void NormHeads(float* row, std::int64_t columns, std::int64_t head_dim, const float* weight,
               float eps) {
  if (weight == nullptr) return;
  for (std::int64_t i = 0; i < columns; i += head_dim) {
    RmsNormRow(row + i, head_dim, weight, eps, row + i);
  }
}

void CheckPositions(const KVCache& cache, const BatchView& batch, const RopeView& rope) {
  for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
    const std::int64_t position = batch.positions[t];
    if (rope.cos != nullptr && position >= rope.length) {
      throw std::out_of_range("position " + std::to_string(position) +
                              " is beyond the rotation table of " + std::to_string(rope.length));
    }
    cache.CheckBlocks(batch, batch.sequences[t], position, position);
  }
}

}  // namespace

void RopeAndStore(const OpContext& context, RowsView<float> q, RowsView<float> k,
                  RowsView<const float> v, KVCache& cache, const BatchView& batch,
                  const RopeView& rope, const HeadNormsView& norms) {
  CheckPositions(cache, batch, rope);
  const KVShape& shape = cache.Shape();
  ForEachRow(context.team, batch.num_tokens, q.columns + 2 * k.columns, [&](std::int64_t t) {
    const std::int64_t position = batch.positions[t];
    NormHeads(q.Row(t), q.columns, shape.head_dim, norms.q, norms.eps);
    NormHeads(k.Row(t), k.columns, shape.head_dim, norms.k, norms.eps);
    if (rope.cos != nullptr) {
      RotateRow(q.Row(t), q.columns, shape.head_dim, position, rope);
      RotateRow(k.Row(t), k.columns, shape.head_dim, position, rope);
    }
    const std::int64_t block = batch.BlockTable(batch.sequences[t])[position / shape.block_size];
    const std::int64_t offset = position % shape.block_size;
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
      const std::int64_t start = head * shape.head_dim;
      const Format format = cache.ElementFormat();
      StoreRow(context.kernels, k.Row(t) + start, shape.head_dim, format,
               cache.Key(block, head, offset));
      StoreRow(context.kernels, v.Row(t) + start, shape.head_dim, format,
               cache.Value(block, head, offset));
    }
  });
}

}  // namespace powerinfer
