#include "ops/attention_tile.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/exp.h"
#include "base/rounding.h"

namespace powerinfer {
namespace {

// Ranges of prompt tiles begin at multiples of this: if a kernel sums several positions at once
// (AMX: 32), it always sums the same ones. A multiple of every GemmKernel::depth_multiple.
constexpr std::int64_t kAlignedPositions = 32;
static_assert(kChunkPositions % kAlignedPositions == 0);

/// Positions [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

Range Intersect(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

Range VisibleTo(const AttentionCall& call, std::int64_t token) {
  const std::int64_t position = call.batch.positions[token];
  const std::int64_t begin = call.window > 0 ? position - call.window + 1 : 0;
  return {std::max<std::int64_t>(0, begin), position + 1};
}

/// The part of one tile's work on one chunk.
class ChunkWorker {
 public:
  ChunkWorker(const KernelTable& kernels, const AttentionCall& call, const TokenTile& tile,
              std::int64_t kv_head, Range range, const TileScratch& scratch)
      : kernels_(kernels),
        call_(call),
        tile_(tile),
        shape_(call.cache->Shape()),
        kv_head_(kv_head),
        seen_(range),
        group_(call.GroupSize()),
        num_queries_(tile.num_tokens * group_),
        format_(call.cache->ElementFormat()),
        is_direct_(format_ == Format::kF16),
        is_blocked_(tile.kind == RowKind::kPrompt &&
                    BlockedProducts::IsUsable(kernels.gemm, shape_.head_dim)),
        range_(is_blocked_ ? Aligned(range) : range),
        scratch_(scratch) {}

  void Run(const Partial& partial) {
    PointToQueries();
    if (is_blocked_) {
      RunBlocked(partial);
      return;
    }
    ForEachRun(range_, [this](std::int64_t block, std::int64_t offset, Range run) {
      ScoreRun(call_.cache->Key(block, kv_head_, offset), run);
    });
    Softmax(partial);
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      std::fill_n(partial.Values(i), shape_.head_dim, 0.0F);
    }
    ForEachRun(range_, [&](std::int64_t block, std::int64_t offset, Range run) {
      AddValues(call_.cache->Value(block, kv_head_, offset), run, partial);
    });
  }

 private:
  static Range Aligned(Range range) {
    return {range.begin / kAlignedPositions * kAlignedPositions, range.end};
  }

  float* Scores(std::int64_t query) const { return scratch_.scores + query * kScoreStride; }

  Range VisibleToQuery(std::int64_t query) const {
    return Intersect(range_, VisibleTo(call_, tile_.first_token + query / group_));
  }

  void PointToQueries() {
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      const std::int64_t head = kv_head_ * group_ + i % group_;
      const float* row = call_.q.Row(tile_.first_token + i / group_);
      scratch_.queries[i].values = row + head * shape_.head_dim;
    }
  }

  /// Calls body(block, offset, positions) for stretches of `range` that lie together in the cache.
  template <typename Body>
  void ForEachRun(Range range, const Body& body) const {
    const std::int32_t* table = call_.batch.BlockTable(tile_.sequence);
    for (std::int64_t position = range.begin; position < range.end;) {
      const std::int64_t offset = position % shape_.block_size;
      const std::int64_t count = std::min(range.end - position, shape_.block_size - offset);
      body(table[position / shape_.block_size], offset, Range{position, position + count});
      position += count;
    }
  }

  /// f32[count, head_dim] of rows that lie together.
  void Convert(const std::uint8_t* rows, std::int64_t count, float* out) const {
    const DequantizeRowFn convert = kernels_.dequantize_row[static_cast<std::size_t>(format_)];
    convert(rows, count * shape_.head_dim, out);
  }

  /// All of `range_`, one row after the other, in scratch_.rows; zeros for positions that no token
  /// of the tile sees, whose blocks may be gone.
  template <typename RowOf>
  void ConvertRange(const RowOf& row_of) const {
    std::fill_n(scratch_.rows, (seen_.begin - range_.begin) * shape_.head_dim, 0.0F);
    ForEachRun(seen_, [&](std::int64_t block, std::int64_t offset, Range run) {
      float* out = scratch_.rows + (run.begin - range_.begin) * shape_.head_dim;
      Convert(row_of(block, offset), run.end - run.begin, out);
    });
  }

  void RunBlocked(const Partial& partial) const {
    const BlockedProducts& products = scratch_.products;
    const auto key_row = [this](std::int64_t block, std::int64_t offset) {
      return call_.cache->Key(block, kv_head_, offset);
    };
    const auto value_row = [this](std::int64_t block, std::int64_t offset) {
      return call_.cache->Value(block, kv_head_, offset);
    };
    products.SetQueries(scratch_.queries, num_queries_);
    ConvertRange(key_row);
    products.Score(scratch_.rows, range_.end - range_.begin, num_queries_, scratch_.scores);
    Softmax(partial);
    ClearMasked();
    ConvertRange(value_row);
    products.WeighValues(scratch_.scores, num_queries_, scratch_.rows, range_.end - range_.begin);
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      std::copy_n(products.Weighted(i), shape_.head_dim, partial.Values(i));
    }
  }

  /// Sets the weights to zero where a query does not see a position of the chunk.
  void ClearMasked() const {
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      const Range visible = VisibleToQuery(i);
      float* first = Scores(i);
      float* last = first + (range_.end - range_.begin);
      if (visible.begin >= visible.end) {
        std::fill(first, last, 0.0F);
        continue;
      }
      std::fill(first, first + (visible.begin - range_.begin), 0.0F);
      std::fill(first + (visible.end - range_.begin), last, 0.0F);
    }
  }

  void ScoreRun(const std::uint8_t* rows, Range run) {
    const std::int64_t count = run.end - run.begin;
    Format format = format_;
    std::int64_t stride = call_.cache->RowSize();
    if (!is_direct_) {
      Convert(rows, count, scratch_.rows);
      rows = reinterpret_cast<const std::uint8_t*>(scratch_.rows);
      format = Format::kF32;
      stride = shape_.head_dim * static_cast<std::int64_t>(sizeof(float));
    }
    const DotRowsFn dot = kernels_.dot_rows[static_cast<std::size_t>(format)];
    for (std::int64_t i = 0; i < num_queries_; i += kMaxDotTokens) {
      const std::int64_t num_tokens = std::min(kMaxDotTokens, num_queries_ - i);
      dot(rows, stride, count, shape_.head_dim, scratch_.queries + i, num_tokens,
          Scores(i) + (run.begin - range_.begin), kScoreStride, kDefaultReadWays.Of(format).ahead);
    }
  }

  /// Scores become weights; fills maximum and sum of `partial`.
  void Softmax(const Partial& partial) const {
    const bool is_capped = call_.soft_cap > 0.0F;
    const float scale = is_capped ? 1.0F : call_.scale;
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      const Range visible = VisibleToQuery(i);
      const std::int64_t count = std::max<std::int64_t>(0, visible.end - visible.begin);
      float* weights = count == 0 ? Scores(i) : Scores(i) + (visible.begin - range_.begin);
      if (is_capped) kernels_.cap_scores(weights, count, call_.scale, call_.soft_cap);
      partial.Sum(i) = kernels_.softmax_weights(weights, count, scale, &partial.Maximum(i));
    }
  }

  void AddValues(const std::uint8_t* rows, Range run, const Partial& partial) const {
    if (!is_direct_) Convert(rows, run.end - run.begin, scratch_.rows);
    for (std::int64_t i = 0; i < num_queries_; ++i) {
      const Range used = Intersect(run, VisibleToQuery(i));
      const std::int64_t count = used.end - used.begin;
      if (count <= 0) continue;
      const float* weights = Scores(i) + (used.begin - range_.begin);
      const std::int64_t skipped = (used.begin - run.begin) * shape_.head_dim;
      if (is_direct_) {
        const auto* values = reinterpret_cast<const std::uint16_t*>(rows);
        kernels_.add_rows_f16(values + skipped, count, shape_.head_dim, weights, partial.Values(i));
      } else {
        kernels_.add_rows_f32(scratch_.rows + skipped, count, shape_.head_dim, weights,
                              partial.Values(i));
      }
    }
  }

  const KernelTable& kernels_;
  const AttentionCall& call_;
  const TokenTile& tile_;
  const KVShape& shape_;
  std::int64_t kv_head_;
  Range seen_;
  std::int64_t group_;
  std::int64_t num_queries_;
  Format format_;
  bool is_direct_;
  bool is_blocked_;
  Range range_;  // of scores and converted rows: seen_, begun earlier if it is aligned
  const TileScratch& scratch_;
};

}  // namespace

std::int64_t TileScratch::NumFloats(const GemmKernel& gemm, std::int64_t max_queries,
                                    std::int64_t head_dim) {
  const std::int64_t num_floats = BlockedProducts::PaddedQueries(max_queries) * kScoreStride +
                                  kChunkPositions * head_dim +
                                  2 * max_queries * Partial::Stride(head_dim) +
                                  BlockedProducts::NumFloats(gemm, max_queries, head_dim);
  return RoundUp(num_floats, 16);  // threads do not share cache lines
}

TileScratch TileScratch::Over(const GemmKernel& gemm, float* floats, ActivationRow* queries,
                              std::int64_t max_queries, std::int64_t head_dim) {
  TileScratch scratch;
  scratch.queries = queries;
  // The products come first: their buffers need the alignment.
  scratch.products = BlockedProducts(gemm, floats, max_queries, head_dim);
  scratch.scores = floats + BlockedProducts::NumFloats(gemm, max_queries, head_dim);
  scratch.rows = scratch.scores + BlockedProducts::PaddedQueries(max_queries) * kScoreStride;
  scratch.chunk = {scratch.rows + kChunkPositions * head_dim, head_dim};
  scratch.total = {scratch.chunk.data + max_queries * Partial::Stride(head_dim), head_dim};
  return scratch;
}

void AttendChunk(const KernelTable& kernels, const AttentionCall& call, const TokenTile& tile,
                 std::int64_t kv_head, std::int64_t chunk, const TileScratch& scratch,
                 const Partial& partial) {
  const Range chunk_range{chunk * kChunkPositions, (chunk + 1) * kChunkPositions};
  const Range range = Intersect(chunk_range, {tile.first_position, tile.last_position + 1});
  ChunkWorker(kernels, call, tile, kv_head, range, scratch).Run(partial);
}

void ClearPartial(const Partial& total, std::int64_t num_queries) {
  for (std::int64_t i = 0; i < num_queries; ++i) {
    std::fill_n(total.Values(i), total.head_dim, 0.0F);
    total.Maximum(i) = -std::numeric_limits<float>::infinity();
    total.Sum(i) = 0.0F;
  }
}

void MergePartial(const Partial& total, const Partial& partial, std::int64_t num_queries) {
  for (std::int64_t i = 0; i < num_queries; ++i) {
    const float sum = partial.Sum(i);
    if (sum == 0.0F) continue;  // this query saw nothing there
    const float before = total.Maximum(i);
    const float here = partial.Maximum(i);
    const float maximum = here > before ? here : before;
    const bool is_first = total.Sum(i) == 0.0F;
    const float keep = is_first ? 0.0F : FastExp(before - maximum);
    const float add = is_first ? 1.0F : FastExp(here - maximum);
    float* values = total.Values(i);
    const float* more = partial.Values(i);
    for (std::int64_t j = 0; j < total.head_dim; ++j) values[j] = values[j] * keep + more[j] * add;
    total.Sum(i) = total.Sum(i) * keep + sum * add;
    total.Maximum(i) = maximum;
  }
}

namespace {

/// The factor of the sums of query i: one over the sum of all weights.
float OutputScale(const AttentionCall& call, std::int64_t head, const Partial& total,
                  std::int64_t i) {
  if (call.sinks == nullptr) return 1.0F / total.Sum(i);
  const float sink = call.sinks[head];
  const float largest = total.Maximum(i);
  const float maximum = sink > largest ? sink : largest;
  const float keep = FastExp(largest - maximum);
  return keep / (total.Sum(i) * keep + FastExp(sink - maximum));
}

}  // namespace

void WriteOutput(const AttentionCall& call, const TokenTile& tile, std::int64_t kv_head,
                 const Partial& total) {
  const std::int64_t group = call.GroupSize();
  const std::int64_t head_dim = total.head_dim;
  for (std::int64_t i = 0; i < tile.num_tokens * group; ++i) {
    const std::int64_t head = kv_head * group + i % group;
    float* out = call.out.Row(tile.first_token + i / group) + head * head_dim;
    const float scale = OutputScale(call, head, total, i);
    const float* values = total.Values(i);
    for (std::int64_t j = 0; j < head_dim; ++j) out[j] = values[j] * scale;
  }
}

}  // namespace powerinfer
