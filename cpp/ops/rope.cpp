#include "ops/rope.h"

#include <stdexcept>
#include <string>
#include <vector>

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

void NormAndRotate(float* row, std::int64_t columns, std::int64_t head_dim, const float* weight,
                   float eps, std::int64_t position, const RopeView& rope) {
  NormHeads(row, columns, head_dim, weight, eps);
  if (rope.cos != nullptr) RotateRow(row, columns, head_dim, position, rope);
}

void CheckAngles(const BatchView& batch, const RopeView& rope) {
  if (rope.cos == nullptr) return;
  for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
    const std::int64_t position = batch.positions[t];
    if (position >= rope.length) {
      throw std::out_of_range("position " + std::to_string(position) +
                              " is beyond the rotation table of " + std::to_string(rope.length));
    }
  }
}

/// Where a token's keys and values go.
struct CacheRow {
  const KernelTable& kernels;
  const KVCache& cache;
  std::int64_t block;
  std::int64_t offset;

  void StoreKeys(const float* row) const {
    const KVShape& shape = cache.Shape();
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
      StoreRow(kernels, row + head * shape.head_dim, shape.head_dim, cache.ElementFormat(),
               cache.Key(block, head, offset));
    }
  }

  /// norm: f32[head_dim]; null: values are stored as they are.
  void StoreValues(const float* row, const float* norm, float eps) const {
    const KVShape& shape = cache.Shape();
    std::vector<float> normed(static_cast<std::size_t>(norm == nullptr ? 0 : shape.head_dim));
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
      const float* values = row + head * shape.head_dim;
      if (norm != nullptr) {
        RmsNormRow(values, shape.head_dim, norm, eps, normed.data());
        values = normed.data();
      }
      StoreRow(kernels, values, shape.head_dim, cache.ElementFormat(),
               cache.Value(block, head, offset));
    }
  }
};

}  // namespace

void RopeAndStore(const OpContext& context, RowsView<float> q, RowsView<float> k,
                  RowsView<const float> v, KVCache& cache, const BatchView& batch,
                  const RopeView& rope, const HeadNormsView& norms) {
  CheckAngles(batch, rope);
  for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
    cache.CheckBlocks(batch, batch.sequences[t], batch.positions[t], batch.positions[t]);
  }
  const KVShape& shape = cache.Shape();
  ForEachRow(context.team, batch.num_tokens, q.columns + 2 * k.columns, [&](std::int64_t t) {
    const std::int64_t position = batch.positions[t];
    const std::int64_t block = batch.BlockTable(batch.sequences[t])[position / shape.block_size];
    const CacheRow stored{context.kernels, cache, block, position % shape.block_size};
    // Before k changes, which may be v.
    stored.StoreValues(v.Row(t), norms.v, norms.eps);
    NormAndRotate(q.Row(t), q.columns, shape.head_dim, norms.q, norms.eps, position, rope);
    NormAndRotate(k.Row(t), k.columns, shape.head_dim, norms.k, norms.eps, position, rope);
    stored.StoreKeys(k.Row(t));
  });
}

void RotateQueries(const OpContext& context, RowsView<float> q, std::int64_t head_dim,
                   const BatchView& batch, const RopeView& rope, const HeadNormsView& norms) {
  CheckAngles(batch, rope);
  ForEachRow(context.team, batch.num_tokens, q.columns, [&](std::int64_t t) {
    NormAndRotate(q.Row(t), q.columns, head_dim, norms.q, norms.eps, batch.positions[t], rope);
  });
}

}  // namespace powerinfer
