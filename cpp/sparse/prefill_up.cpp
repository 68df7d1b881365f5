// Rows of weights times the tokens that need them. Work is cut into blocks of tokens whose
// activations stay in the second-level cache, and those into chunks of rows. Every pair is a sum of
// its own: no cut changes a result.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "base/rounding.h"
#include "ops/blocking.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

// Activations of a block of tokens: with a row of weights and the lists they fit into a
// second-level cache of 1 MiB.
constexpr std::int64_t kInputBytes = 640 * 1024;
constexpr std::int64_t kMinTokens = 32;
constexpr std::int64_t kMaxTokens = 512;
// Rows of one chunk, fewer if there are many threads.
constexpr std::int64_t kMaxChunkRows = 256;
constexpr std::int64_t kMinChunkRows = 16;
// Numbers of a row multiplied at a time in f32. Whole blocks of every format.
constexpr std::int64_t kPieceDepth = 512;

/// The pairs of a chunk of rows with a block of tokens: those of row i are begins[i] to
/// begins[i + 1] - 1, tokens ascending.
struct ChunkPairs {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::span<const std::int32_t> rows;  // neurons
  std::int64_t first_row = 0;          // place of rows[0] in NeededRows::ids
  std::int32_t* begins = nullptr;      // i32[rows.size() + 1]
  std::uint16_t* tokens = nullptr;     // u16[pairs], counted from first_token
  std::int32_t* in_token = nullptr;    // i32[pairs]: the pair's place in its token's list
  float* sums = nullptr;               // f32[pairs]

  std::int64_t NumRows() const { return static_cast<std::int64_t>(rows.size()); }
  std::int64_t Count(std::int64_t i) const { return begins[i + 1] - begins[i]; }
};

/// The blocks of the work, and one thread's scratch for a chunk: its lists, then a decoded row.
struct Cut {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t num_chunks = 0;
  std::int64_t max_pairs = 0;
  std::int64_t row_at = 0;
  std::int64_t thread_bytes = 0;

  Cut(std::int64_t num_tokens, std::int64_t token_bytes, std::int64_t num_rows,
      std::int64_t row_bytes, std::int32_t num_threads)
      : tokens(std::min(num_tokens, std::clamp(kInputBytes / token_bytes, kMinTokens, kMaxTokens))),
        rows(std::clamp(DivideUp(num_rows, num_threads * kChunksPerThread), kMinChunkRows,
                        kMaxChunkRows)),
        num_chunks(DivideUp(num_rows, rows)),
        max_pairs(RoundUp(rows * tokens, kVector)) {
    row_at = RoundUp((rows + 1) * 4 + max_pairs * (4 + 4 + 2), 64);
    thread_bytes = row_at + RoundUp(row_bytes, 64);
  }

  ChunkPairs Chunk(std::int64_t index, std::int64_t num_tokens, const NeededRows& needed,
                   std::uint8_t* base) const {
    ChunkPairs chunk;
    chunk.first_token = index / num_chunks * tokens;
    chunk.num_tokens = std::min(tokens, num_tokens - chunk.first_token);
    chunk.first_row = index % num_chunks * rows;
    chunk.rows = needed.ids.subspan(
        static_cast<std::size_t>(chunk.first_row),
        static_cast<std::size_t>(std::min(rows, needed.Count() - chunk.first_row)));
    chunk.sums = reinterpret_cast<float*>(base);
    chunk.in_token = reinterpret_cast<std::int32_t*>(chunk.sums + max_pairs);
    chunk.begins = chunk.in_token + max_pairs;
    chunk.tokens = reinterpret_cast<std::uint16_t*>(chunk.begins + rows + 1);
    return chunk;
  }
};

/// Calls visit(token, k, row) for the pairs of a chunk, k their place in the token's list.
template <typename Visit>
void VisitPairs(const TokenPairs& pairs, const NeededRows& needed, const ChunkPairs& chunk,
                const Visit& visit) {
  for (std::int64_t token = 0; token < chunk.num_tokens; ++token) {
    const std::int32_t* ids = pairs.Ids(chunk.first_token + token);
    const std::int32_t* last = ids + pairs.counts[chunk.first_token + token];
    const std::int32_t* id = std::lower_bound(ids, last, chunk.rows.front());
    for (; id != last && *id <= chunk.rows.back(); ++id) {
      visit(token, id - ids, needed.places[*id] - chunk.first_row);
    }
  }
}

void ListTokens(const TokenPairs& pairs, const NeededRows& needed, const ChunkPairs& chunk) {
  // begins[i + 1] counts row i's pairs, then is where they begin, then where they end.
  std::fill_n(chunk.begins, chunk.NumRows() + 1, 0);
  VisitPairs(pairs, needed, chunk,
             [&](std::int64_t, std::int64_t, std::int64_t row) { ++chunk.begins[row + 1]; });
  std::int32_t begin = 0;
  for (std::int64_t i = 1; i <= chunk.NumRows(); ++i) {
    const std::int32_t count = chunk.begins[i];
    chunk.begins[i] = begin;
    begin += count;
  }
  VisitPairs(pairs, needed, chunk, [&](std::int64_t token, std::int64_t k, std::int64_t row) {
    const std::int32_t at = chunk.begins[row + 1]++;
    chunk.tokens[at] = static_cast<std::uint16_t>(token);
    chunk.in_token[at] = static_cast<std::int32_t>(k);
  });
}

void StoreSums(const TokenPairs& pairs, const ChunkPairs& chunk, const float* bias, float* out) {
  for (std::int64_t i = 0; i < chunk.NumRows(); ++i) {
    const float shift = bias != nullptr ? bias[chunk.rows[static_cast<std::size_t>(i)]] : 0.0F;
    for (std::int32_t at = chunk.begins[i]; at < chunk.begins[i + 1]; ++at) {
      const std::int64_t token = chunk.first_token + chunk.tokens[at];
      out[token * pairs.num_neurons + chunk.in_token[at]] = chunk.sums[at] + shift;
    }
  }
}

/// Calls multiply(chunk, row scratch) for every chunk, on the team, and stores the sums.
template <typename Multiply>
void ForChunks(const OpContext& context, const Cut& cut, const TokenPairs& pairs,
               const NeededRows& needed, const float* bias, float* out, const Multiply& multiply) {
  auto* scratch = context.workspace.Get<std::uint8_t>(Scratch::kThreadBlocks,
                                                      cut.thread_bytes * context.team.NumThreads());
  const auto run = [&](std::int64_t index, std::int32_t thread) {
    std::uint8_t* own = scratch + thread * cut.thread_bytes;
    const ChunkPairs chunk = cut.Chunk(index, pairs.num_tokens, needed, own);
    ListTokens(pairs, needed, chunk);
    multiply(chunk, own + cut.row_at);
    StoreSums(pairs, chunk, bias, out);
  };
  context.team.ParallelFor(DivideUp(pairs.num_tokens, cut.tokens) * cut.num_chunks, std::ref(run));
}

/// x in pieces of kPieceDepth columns, one after the other: f32[piece, num_tokens, kStride].
struct InputPieces {
  // The extra columns keep tokens from falling into the same cache sets.
  static constexpr std::int64_t kStride = kPieceDepth + kVector;
  const float* data = nullptr;
  std::int64_t num_tokens = 0;

  const float* Piece(std::int64_t piece, std::int64_t token) const {
    return data + (piece * num_tokens + token) * kStride;
  }
};

InputPieces PackPieces(const OpContext& context, RowsView<const float> x) {
  const std::int64_t num_pieces = DivideUp(x.columns, kPieceDepth);
  auto* data = context.workspace.Get<float>(Scratch::kPackedInput,
                                            num_pieces * x.rows * InputPieces::kStride);
  const auto pack = [&](std::int64_t token, std::int32_t) {
    for (std::int64_t piece = 0; piece < num_pieces; ++piece) {
      const std::int64_t column = piece * kPieceDepth;
      const std::int64_t count = std::min(kPieceDepth, x.columns - column);
      float* out = data + (piece * x.rows + token) * InputPieces::kStride;
      std::copy_n(x.Row(token) + column, count, out);
      std::fill(out + count, out + RoundUp(count, kVector), 0.0F);
    }
  };
  context.team.ParallelFor(x.rows, std::ref(pack));
  return {data, x.rows};
}

void MultiplyFloats(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                    const float* bias, const TokenPairs& pairs, const NeededRows& needed,
                    float* out) {
  constexpr std::int64_t kPieceBytes = InputPieces::kStride * std::int64_t{sizeof(float)};
  const InputPieces pieces = PackPieces(context, x);
  const Cut cut(x.rows, kPieceBytes, needed.Count(), kPieceBytes, context.team.NumThreads());
  const RowSelection rows{needed.ids.data(), needed.Count()};
  const auto multiply = [&](const ChunkPairs& chunk, std::uint8_t* scratch) {
    auto* row = reinterpret_cast<float*>(scratch);
    std::fill_n(chunk.sums, chunk.begins[chunk.NumRows()], 0.0F);
    for (std::int64_t column = 0; column < matrix.columns; column += kPieceDepth) {
      const std::int64_t depth = std::min(kPieceDepth, matrix.columns - column);
      const float* piece = pieces.Piece(column / kPieceDepth, chunk.first_token);
      std::fill(row + depth, row + RoundUp(depth, kVector), 0.0F);
      for (std::int64_t i = 0; i < chunk.NumRows(); ++i) {
        if (chunk.Count(i) == 0) continue;
        const std::int32_t begin = chunk.begins[i];
        DequantizePiece(context.kernels, matrix, rows, chunk.first_row + i, column, depth, row);
        context.kernels.dot_listed(row, RoundUp(depth, kVector), piece, InputPieces::kStride,
                                   chunk.tokens + begin, chunk.Count(i), chunk.sums + begin);
      }
    }
  };
  ForChunks(context, cut, pairs, needed, bias, out, multiply);
}

void PrefetchRow(const MatrixView& matrix, std::int64_t row) {
  const std::int64_t bytes = RowBytes(matrix.format, matrix.columns);
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(matrix.Row(row) + i, 0, 2);
}

void MultiplyInt8(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                  const float* bias, const TokenPairs& pairs, const NeededRows& needed,
                  float* out) {
  const Int8Kernel& kernel = context.kernels.int8;
  const auto format = static_cast<std::size_t>(matrix.format);
  const ActivationRow* rows = PrepareActivations(context.Nested(), x, std::span(&matrix.format, 1));
  // A code, and a scale, a sum and two sums of halves for every 32 of them.
  const std::int64_t token_bytes = x.columns + x.columns / 32 * 16;
  const Cut cut(x.rows, token_bytes, needed.Count(), kernel.unpacked_bytes[format](matrix.columns),
                context.team.NumThreads());
  const auto multiply = [&](const ChunkPairs& chunk, std::uint8_t* unpacked) {
    for (std::int64_t i = 0; i < chunk.NumRows(); ++i) {
      const auto place = static_cast<std::size_t>(i);
      if (i + 1 < chunk.NumRows()) PrefetchRow(matrix, chunk.rows[place + 1]);
      if (chunk.Count(i) == 0) continue;
      const std::int32_t begin = chunk.begins[i];
      kernel.unpack[format](matrix.Row(chunk.rows[place]), matrix.columns, unpacked);
      kernel.multiply_listed[format](unpacked, matrix.columns, rows + chunk.first_token,
                                     chunk.tokens + begin, chunk.Count(i), chunk.sums + begin);
    }
  };
  ForChunks(context, cut, pairs, needed, bias, out, multiply);
}

/// Signs: only decode has a kernel for their products with the signs of x.
void MultiplySigns(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                   const float* bias, const TokenPairs& pairs, float* out) {
  const DotRowsFn dot_rows = context.kernels.dot_rows[static_cast<std::size_t>(matrix.format)];
  const std::int64_t ahead = context.ways.Of(matrix.format).ahead;
  const ActivationRow* rows = PrepareActivations(context.Nested(), x, std::span(&matrix.format, 1));
  const auto run = [&](std::int64_t token, std::int32_t) {
    for (std::int64_t k = 0; k < pairs.counts[token]; ++k) {
      const std::int32_t id = pairs.Ids(token)[k];
      float* sum = out + token * pairs.num_neurons + k;
      dot_rows(matrix.Row(id), matrix.row_bytes, 1, matrix.columns, rows + token, 1, sum, 1, ahead);
      if (bias != nullptr) *sum += bias[id];
    }
  };
  context.team.ParallelFor(pairs.num_tokens, std::ref(run));
}

}  // namespace

void MultiplyPairs(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                   const float* bias, const TokenPairs& pairs, const NeededRows& needed,
                   float* out) {
  if (needed.ids.empty()) return;
  if (context.kernels.int8.Takes(matrix.format)) {
    MultiplyInt8(context, x, matrix, bias, pairs, needed, out);
  } else if (InfoOf(matrix.format).activations == ActivationForm::kSigns) {
    MultiplySigns(context, x, matrix, bias, pairs, out);
  } else {
    MultiplyFloats(context, x, matrix, bias, pairs, needed, out);
  }
}

}  // namespace powerinfer
