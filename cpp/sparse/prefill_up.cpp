// up (ungated: nothing) of the pairs of neurons that fire rarely: each row with its own tokens.
#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>

#include "base/rounding.h"
#include "ops/blocking.h"
#include "sparse/prefill_products.h"

namespace powerinfer {
namespace {

// Neurons of one chunk at most: x is read from memory once per chunk, so chunks are long where
// there are few threads. Every pair is a sum of its own: the cut does not change the result.
constexpr std::int64_t kMaxChunkNeurons = 1024;
constexpr std::int64_t kMinChunkNeurons = 64;
constexpr std::int64_t kChunksPerThread = 4;
// Numbers of a row multiplied at a time: this much of 512 tokens, 1 MiB, stays in the second-level
// cache. Whole blocks of every format.
constexpr std::int64_t kPieceDepth = 512;
// Whole vectors of every instruction set.
constexpr std::int64_t kVector = 16;

/// The tokens of a chunk of rarely firing neurons: those of neuron i of the chunk are
/// tokens[begins[i]] to tokens[begins[i + 1] - 1], ascending.
struct ChunkPairs {
  std::int64_t first = 0;  // place of the chunk in split.rarely
  std::int64_t count = 0;
  std::int32_t* begins;    // i32[count + 1]
  std::uint16_t* tokens;   // u16[pairs]
  std::int32_t* in_token;  // i32[pairs]: the pair's place in its token's list
  float* sums;             // f32[pairs]

  std::int64_t Count(std::int64_t i) const { return begins[i + 1] - begins[i]; }
};

/// The cut into chunks and scratch for the longest of them.
struct ChunkLayout {
  std::int64_t neurons = 0;  // of a chunk
  std::int64_t max_pairs = 0;
  std::int64_t bytes = 0;

  ChunkLayout(const FiringPairs& pairs, const NeuronSplit& split, std::int32_t num_threads)
      : neurons(std::clamp(DivideUp(split.NumRarely(), num_threads * kChunksPerThread),
                           kMinChunkNeurons, kMaxChunkNeurons)) {
    for (std::int64_t first = 0; first < split.NumRarely(); first += neurons) {
      std::int64_t sum = 0;
      for (std::int64_t i = first; i < std::min(split.NumRarely(), first + neurons); ++i) {
        sum += pairs.num_firing[split.rarely[static_cast<std::size_t>(i)]];
      }
      max_pairs = std::max(max_pairs, RoundUp(sum, kVector));
    }
    bytes = RoundUp((neurons + 1) * 4 + max_pairs * (4 + 4 + 2), 64);
  }

  ChunkPairs At(std::uint8_t* base, std::int64_t first, std::int64_t count) const {
    auto* sums = reinterpret_cast<float*>(base);
    auto* in_token = reinterpret_cast<std::int32_t*>(sums + max_pairs);
    auto* begins = in_token + max_pairs;
    auto* tokens = reinterpret_cast<std::uint16_t*>(begins + neurons + 1);
    return {first, count, begins, tokens, in_token, sums};
  }
};

void ListTokens(const FiringPairs& pairs, const NeuronSplit& split, const ChunkPairs& chunk) {
  const std::int32_t* rarely = split.rarely.data() + chunk.first;
  std::array<std::int32_t, kMaxChunkNeurons> ends;
  chunk.begins[0] = 0;
  for (std::int64_t i = 0; i < chunk.count; ++i) {
    ends[static_cast<std::size_t>(i)] = chunk.begins[i];
    chunk.begins[i + 1] = chunk.begins[i] + pairs.num_firing[rarely[i]];
  }
  std::fill_n(chunk.sums, chunk.begins[chunk.count], 0.0F);
  for (std::int64_t token = 0; token < pairs.num_tokens; ++token) {
    const std::int32_t* ids = pairs.Ids(token);
    const std::int32_t* last = ids + pairs.counts[token];
    const std::int32_t* id = std::lower_bound(ids, last, rarely[0]);
    for (; id != last && *id <= rarely[chunk.count - 1]; ++id) {
      const std::int64_t place = -1 - std::int64_t{split.places[*id]} - chunk.first;
      if (place < 0) continue;  // fires often
      const std::int32_t at = ends[static_cast<std::size_t>(place)]++;
      chunk.tokens[at] = static_cast<std::uint16_t>(token);
      chunk.in_token[at] = static_cast<std::int32_t>(id - ids);
    }
  }
}

/// x in pieces of kPieceDepth columns, one after the other: f32[piece, num_tokens, kStride].
struct InputPieces {
  // The extra columns keep tokens from falling into the same cache sets.
  static constexpr std::int64_t kStride = kPieceDepth + kVector;
  const float* data = nullptr;
  std::int64_t num_tokens = 0;

  const float* Piece(std::int64_t piece) const { return data + piece * num_tokens * kStride; }
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

void MultiplyChunk(const KernelTable& kernels, const MatrixView& matrix, const NeuronSplit& split,
                   const InputPieces& x, const ChunkPairs& chunk, float* row) {
  const RowSelection rows{split.rarely.data(), split.NumRarely()};
  for (std::int64_t column = 0; column < matrix.columns; column += kPieceDepth) {
    const std::int64_t depth = std::min(kPieceDepth, matrix.columns - column);
    const float* piece = x.Piece(column / kPieceDepth);
    std::fill(row + depth, row + RoundUp(depth, kVector), 0.0F);
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      const std::int32_t begin = chunk.begins[i];
      DequantizePiece(kernels, matrix, rows, chunk.first + i, column, depth, row);
      kernels.dot_listed(row, RoundUp(depth, kVector), piece, InputPieces::kStride,
                         chunk.tokens + begin, chunk.Count(i), chunk.sums + begin);
    }
  }
}

void StoreSums(const FiringPairs& pairs, const NeuronSplit& split, const ChunkPairs& chunk,
               const float* bias, float* up) {
  for (std::int64_t i = 0; i < chunk.count; ++i) {
    const std::int32_t id = split.rarely[static_cast<std::size_t>(chunk.first + i)];
    const float shift = bias != nullptr ? bias[id] : 0.0F;
    for (std::int32_t at = chunk.begins[i]; at < chunk.begins[i + 1]; ++at) {
      up[chunk.tokens[at] * pairs.num_neurons + chunk.in_token[at]] = chunk.sums[at] + shift;
    }
  }
}

}  // namespace

void MultiplyPairs(const OpContext& context, RowsView<const float> x, const MatrixView& matrix,
                   const float* bias, const FiringPairs& pairs, const NeuronSplit& split,
                   float* up) {
  if (split.rarely.empty()) return;
  const InputPieces pieces = PackPieces(context, x);
  constexpr std::int64_t kRowBytes = kPieceDepth * std::int64_t{sizeof(float)};
  const ChunkLayout layout(pairs, split, context.team.NumThreads());
  const std::int64_t bytes = kRowBytes + layout.bytes;
  auto* scratch = context.workspace.Get<std::uint8_t>(Scratch::kThreadBlocks,
                                                      bytes * context.team.NumThreads());
  const auto run = [&](std::int64_t index, std::int32_t thread) {
    const std::int64_t first = index * layout.neurons;
    std::uint8_t* own = scratch + thread * bytes;
    const ChunkPairs chunk =
        layout.At(own + kRowBytes, first, std::min(layout.neurons, split.NumRarely() - first));
    ListTokens(pairs, split, chunk);
    MultiplyChunk(context.kernels, matrix, split, pieces, chunk, reinterpret_cast<float*>(own));
    StoreSums(pairs, split, chunk, bias, up);
  };
  context.team.ParallelFor(DivideUp(split.NumRarely(), layout.neurons), std::ref(run));
}

}  // namespace powerinfer
