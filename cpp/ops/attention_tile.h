// The inner part of attention: some tokens of one sequence, one KV head, one chunk of positions.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.h"
#include "ops/attention.h"
#include "ops/attention_blocked.h"

namespace powerinfer {

/// Queries (tokens times heads of a group) that share one conversion of keys and values.
inline constexpr std::int64_t kTileQueries = 64;

/// Consecutive tokens of a batch that belong to one sequence and are of one kind.
struct TokenTile {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::int64_t sequence = 0;
  std::int64_t first_position = 0;  ///< lowest position any of them sees
  std::int64_t last_position = 0;   ///< highest position of any of them
  RowKind kind = RowKind::kDecode;

  std::int64_t FirstChunk() const { return first_position / kChunkPositions; }
  std::int64_t LastChunk() const { return last_position / kChunkPositions; }
};

/// Softmax-weighted sums of a tile's queries over some positions: per query f32[head_dim] that
/// still has to be divided by `sum`, where weights are exp(score - maximum). Query index: token of
/// the tile times GroupSize() plus head of the group.
struct Partial {
  float* data = nullptr;
  std::int64_t head_dim = 0;

  static std::int64_t Stride(std::int64_t head_dim) { return head_dim + 2; }
  float* Values(std::int64_t query) const { return data + query * Stride(head_dim); }
  float& Maximum(std::int64_t query) const { return Values(query)[head_dim]; }
  float& Sum(std::int64_t query) const { return Values(query)[head_dim + 1]; }
};

/// Memory of one thread.
struct TileScratch {
  ActivationRow* queries = nullptr;  // [max_queries]
  float* scores = nullptr;           // f32[padded queries, kScoreStride]
  float* rows = nullptr;             // f32[kChunkPositions, head_dim]: converted keys or values
  Partial chunk;                     // of one chunk
  Partial total;                     // merged so far
  BlockedProducts products;

  static std::int64_t NumFloats(const GemmKernel& gemm, std::int64_t max_queries,
                                std::int64_t head_dim);
  /// Lays the buffers out in `floats`.
  static TileScratch Over(const GemmKernel& gemm, float* floats, ActivationRow* queries,
                          std::int64_t max_queries, std::int64_t head_dim);
};

/// Fills `partial` with the tile's queries over the positions of `chunk`.
void AttendChunk(const KernelTable& kernels, const AttentionCall& call, const TokenTile& tile,
                 std::int64_t kv_head, std::int64_t chunk, const TileScratch& scratch,
                 const Partial& partial);

/// Sets `total` to "no positions yet".
void ClearPartial(const Partial& total, std::int64_t num_queries);
/// total = total and partial together.
void MergePartial(const Partial& total, const Partial& partial, std::int64_t num_queries);
/// Adds the sinks, if there are any, divides by the sums and writes the tile's rows of call.out.
void WriteOutput(const AttentionCall& call, const TokenTile& tile, std::int64_t kv_head,
                 const Partial& total);

}  // namespace powerinfer
