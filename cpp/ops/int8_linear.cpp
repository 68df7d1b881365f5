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

// Unpacked rows of one chunk: they stay in the second-level cache, and meet all tokens there.
constexpr std::int64_t kChunkBytes = 128 * 1024;
// Tokens that meet the rows of a chunk before the next ones: as many as stay there beside them.
constexpr std::int64_t kTokenBytes = 384 * 1024;
// Chunks per thread that dynamic hand-out needs for balance.
constexpr std::int64_t kChunksPerThread = 4;

/// How one item is cut.
struct Cut {
  std::int64_t unpacked_bytes;  // of a row
  std::int64_t chunk_rows;
  std::int64_t num_chunks;

  Cut(const KernelTable& kernels, const LinearItem& item, std::int64_t num_rows,
      std::int32_t num_threads)
      : unpacked_bytes(kernels.int8.unpacked_bytes[static_cast<std::size_t>(item.matrix.format)](
            item.matrix.columns)) {
    const std::int64_t fitting = std::max<std::int64_t>(1, kChunkBytes / unpacked_bytes);
    const std::int64_t even = DivideUp(num_rows, num_threads * kChunksPerThread);
    chunk_rows =
        RoundUp(std::min(fitting, std::max<std::int64_t>(1, even)), kernels.int8.tile_rows);
    num_chunks = DivideUp(item.matrix.rows, chunk_rows);
  }
};

/// Tokens multiplied at a time.
std::int64_t TokensAtATime(std::int64_t columns) {
  // A code, and a scale, a sum and two sums of halves for every 32 of them.
  const std::int64_t token_bytes = columns + columns / 32 * 16;
  return std::max<std::int64_t>(12, kTokenBytes / std::max<std::int64_t>(1, token_bytes));
}

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
void MultiplyChunk(const KernelTable& kernels, const LinearItem& item, const ActivationRow* x,
                   std::int64_t token, std::int64_t num_tokens, std::int64_t first,
                   std::int64_t count, std::int64_t unpacked_bytes, std::uint8_t* scratch) {
  const MatrixView& matrix = item.matrix;
  const auto format = static_cast<std::size_t>(matrix.format);
  for (std::int64_t r = 0; r < count; ++r) {
    kernels.int8.unpack[format](matrix.Row(first + r), matrix.columns,
                                scratch + r * unpacked_bytes);
  }
  const std::int64_t step = TokensAtATime(matrix.columns);
  for (std::int64_t t = 0; t < num_tokens; t += step) {
    kernels.int8.multiply[format](scratch, count, matrix.columns, x + t,
                                  std::min(step, num_tokens - t), item.out.Row(token + t) + first,
                                  item.out.stride);
  }
  AddBias(item, token, num_tokens, first, count);
}

/// All items for tokens [token, token + num_tokens).
void MultiplyTokens(const OpContext& context, const ActivationRow* x, std::int64_t token,
                    std::int64_t num_tokens, std::span<const LinearItem> items) {
  const std::int32_t num_threads = context.team.NumThreads();
  std::int64_t num_rows = 0;
  for (const LinearItem& item : items) num_rows += item.matrix.rows;
  std::vector<Cut> cuts;
  std::int64_t num_chunks = 0;
  std::int64_t scratch_bytes = 0;
  for (const LinearItem& item : items) {
    cuts.emplace_back(context.kernels, item, num_rows, num_threads);
    num_chunks += cuts.back().num_chunks;
    scratch_bytes = std::max(scratch_bytes, cuts.back().chunk_rows * cuts.back().unpacked_bytes);
  }
  auto* scratch =
      context.workspace.Get<std::uint8_t>(Scratch::kThreadBlocks, scratch_bytes * num_threads);
  const auto run = [&](std::int64_t chunk, std::int32_t thread) {
    std::size_t i = 0;
    for (; chunk >= cuts[i].num_chunks; ++i) chunk -= cuts[i].num_chunks;
    const std::int64_t first = chunk * cuts[i].chunk_rows;
    MultiplyChunk(context.kernels, items[i], x, token, num_tokens, first,
                  std::min(cuts[i].chunk_rows, items[i].matrix.rows - first),
                  cuts[i].unpacked_bytes, scratch + thread * scratch_bytes);
  };
  context.team.ParallelFor(num_chunks, std::ref(run));
}

}  // namespace

void Int8Linear(const OpContext& context, RowsView<const float> x,
                std::span<const LinearItem> items) {
  if (items.empty()) return;
  std::vector<Format> formats;
  for (const LinearItem& item : items) formats.push_back(item.matrix.format);
  for (std::int64_t token = 0; token < x.rows; token += kMaxBlockTokens) {
    const std::int64_t tokens = std::min(kMaxBlockTokens, x.rows - token);
    const ActivationRow* rows =
        PrepareActivations(context, {x.Row(token), tokens, x.columns, x.stride}, formats);
    MultiplyTokens(context, rows, token, tokens, items);
  }
}

}  // namespace powerinfer
