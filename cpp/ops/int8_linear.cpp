#include "ops/int8_linear.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/blocking.h"

namespace powerinfer {
namespace {

// Rows of one chunk, before it is rounded up to whole tiles: they share the reads of tokens from
// beyond the second-level cache, and their unpacked bytes stay in it.
constexpr std::int64_t kChunkRows = 16;
// Tokens that are multiplied with the rows of a chunk before the next ones: their sums, and the
// part of them that the kernel reads at a time, stay in the second-level cache.
constexpr std::int64_t kTokensAtATime = 128;

/// The blocks of one item.
struct Cut {
  std::int64_t unpacked_bytes;  // of a row
  std::int64_t chunk_rows;
  std::int64_t num_chunks;

  Cut(const Int8Kernel& kernel, const MatrixView& matrix, std::int64_t num_rows,
      std::int32_t num_threads)
      : unpacked_bytes(
            kernel.unpacked_bytes[static_cast<std::size_t>(matrix.format)](matrix.columns)) {
    const std::int64_t even = DivideUp(num_rows, num_threads * kChunksPerThread);
    chunk_rows = RoundUp(std::clamp<std::int64_t>(even, 1, kChunkRows), kernel.tile_rows);
    num_chunks = DivideUp(matrix.rows, chunk_rows);
  }
};

/// One thread's scratch for a chunk.
struct ChunkScratch {
  float* sums;         // f32[chunk rows, kTokensAtATime, lanes]
  std::uint8_t* rows;  // unpacked

  static std::int64_t SumsBytes(const Int8Kernel& kernel, std::int64_t chunk_rows) {
    return chunk_rows * kTokensAtATime * kernel.lanes * std::int64_t{sizeof(float)};
  }
};

void AddBias(const LinearItem& item, std::int64_t token, std::int64_t num_tokens,
             std::int64_t first, std::int64_t count) {
  if (item.bias == nullptr) return;
  for (std::int64_t t = token; t < token + num_tokens; ++t) {
    float* out = item.out.Row(t);
    for (std::int64_t row = first; row < first + count; ++row) out[row] += item.bias[row];
  }
}

/// Rows [first, first + count) of an item with tokens [token, token + num_tokens), whose
/// activations begin at x.
void MultiplyChunk(const Int8Kernel& kernel, const LinearItem& item, const ActivationRow* x,
                   std::int64_t token, std::int64_t num_tokens, std::int64_t first,
                   std::int64_t count, std::int64_t unpacked_bytes, const ChunkScratch& scratch) {
  const MatrixView& matrix = item.matrix;
  const auto format = static_cast<std::size_t>(matrix.format);
  for (std::int64_t r = 0; r < count; ++r) {
    kernel.unpack[format](matrix.Row(first + r), matrix.columns, scratch.rows + r * unpacked_bytes);
  }
  for (std::int64_t t = 0; t < num_tokens; t += kTokensAtATime) {
    kernel.multiply[format](scratch.rows, count, matrix.columns, x + t,
                            std::min(kTokensAtATime, num_tokens - t),
                            item.out.Row(token + t) + first, item.out.stride, scratch.sums);
  }
  AddBias(item, token, num_tokens, first, count);
}

/// All items for tokens [token, token + num_tokens).
void MultiplyTokens(const OpContext& context, const ActivationRow* x, std::int64_t token,
                    std::int64_t num_tokens, std::span<const LinearItem> items) {
  const Int8Kernel& kernel = context.kernels.int8;
  const std::int32_t num_threads = context.team.NumThreads();
  std::int64_t num_rows = 0;
  for (const LinearItem& item : items) num_rows += item.matrix.rows;
  std::vector<Cut> cuts;
  std::int64_t num_chunks = 0;
  std::int64_t rows_bytes = 0;
  for (const LinearItem& item : items) {
    cuts.emplace_back(kernel, item.matrix, num_rows, num_threads);
    num_chunks += cuts.back().num_chunks;
    rows_bytes = std::max(rows_bytes, cuts.back().chunk_rows * cuts.back().unpacked_bytes);
  }
  const std::int64_t sums_bytes = ChunkScratch::SumsBytes(kernel, cuts.front().chunk_rows);
  const std::int64_t bytes = sums_bytes + rows_bytes;
  auto* scratch = context.workspace.Get<std::uint8_t>(Scratch::kThreadBlocks, bytes * num_threads);
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    std::size_t i = 0;
    for (; chunk >= cuts[i].num_chunks; ++i) chunk -= cuts[i].num_chunks;
    const std::int64_t first = chunk * cuts[i].chunk_rows;
    std::uint8_t* own = scratch + thread * bytes;
    MultiplyChunk(kernel, items[i], x, token, num_tokens, first,
                  std::min(cuts[i].chunk_rows, items[i].matrix.rows - first),
                  cuts[i].unpacked_bytes, {reinterpret_cast<float*>(own), own + sums_bytes});
  };
  context.team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace

void Int8Linear(const OpContext& context, RowsView<const float> x,
                std::span<const LinearItem> items) {
  if (items.empty()) return;
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const ActivationRow* rows = PrepareActivations(context, x.Some(token, tokens), items);
    MultiplyTokens(context, rows, token, tokens, items);
  }
}

}  // namespace powerinfer
