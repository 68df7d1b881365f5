#include "ops/attention.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/attention_tile.h"

namespace powerinfer {
namespace {

// With fewer (tile, KV head) pairs than this per thread, chunks are spread over threads as well.
constexpr std::int64_t kUnitsPerThread = 4;

/// One chunk of one tile; its partials for all KV heads start at `first_partial`.
struct Span {
  std::int64_t tile = 0;
  std::int64_t chunk = 0;
  std::int64_t first_partial = 0;
};

TokenTile GrowTile(const AttentionCall& call, std::int64_t first_token, std::int64_t max_tokens) {
  const BatchView& batch = call.batch;
  TokenTile tile{first_token,
                 0,
                 batch.sequences[first_token],
                 batch.positions[first_token],
                 0,
                 batch.Kind(first_token)};
  for (std::int64_t t = first_token; t < batch.num_tokens && tile.num_tokens < max_tokens; ++t) {
    if (batch.sequences[t] != tile.sequence || batch.Kind(t) != tile.kind) break;
    const std::int64_t position = batch.positions[t];
    const std::int64_t lowest = call.window > 0 ? position - call.window + 1 : 0;
    tile.first_position = std::min(tile.first_position, std::max<std::int64_t>(0, lowest));
    tile.last_position = std::max(tile.last_position, position);
    ++tile.num_tokens;
  }
  return tile;
}

std::vector<TokenTile> MakeTiles(const AttentionCall& call) {
  const std::int64_t max_tokens = std::max<std::int64_t>(1, kTileQueries / call.GroupSize());
  std::vector<TokenTile> tiles;
  for (std::int64_t t = 0; t < call.batch.num_tokens;) {
    tiles.push_back(GrowTile(call, t, max_tokens));
    const TokenTile& tile = tiles.back();
    call.cache->CheckBlocks(call.batch, tile.sequence, tile.first_position, tile.last_position);
    t += tile.num_tokens;
  }
  return tiles;
}

/// Runs one attention call; the two ways of sharing the work give the same bits.
class Runner {
 public:
  Runner(const OpContext& context, const AttentionCall& call)
      : context_(context),
        call_(call),
        tiles_(MakeTiles(call)),
        num_kv_heads_(call.cache->Shape().num_kv_heads),
        head_dim_(call.cache->Shape().head_dim),
        max_queries_(std::max(kTileQueries, call.GroupSize())) {
    const std::int64_t threads = context.team.NumThreads();
    scratch_ = context.workspace.Get<float>(Scratch::kThreadBlocks, threads * ScratchFloats());
    queries_ =
        context.workspace.Get<ActivationRow>(Scratch::kActivationRows, threads * max_queries_);
  }

  void Run() {
    const auto num_units = static_cast<std::int64_t>(tiles_.size()) * num_kv_heads_;
    if (num_units < kUnitsPerThread * context_.team.NumThreads() && HasLongTile()) {
      RunSplit();
    } else {
      RunWhole(num_units);
    }
  }

 private:
  bool HasLongTile() const {
    return std::any_of(tiles_.begin(), tiles_.end(),
                       [](const TokenTile& tile) { return tile.LastChunk() > tile.FirstChunk(); });
  }

  std::int64_t NumQueries(const TokenTile& tile) const {
    return tile.num_tokens * call_.GroupSize();
  }

  std::int64_t ScratchFloats() const {
    return TileScratch::NumFloats(context_.kernels.gemm, max_queries_, head_dim_);
  }

  TileScratch ScratchOf(std::int32_t thread) const {
    return TileScratch::Over(context_.kernels.gemm, scratch_ + thread * ScratchFloats(),
                             queries_ + thread * max_queries_, max_queries_, head_dim_);
  }

  /// One unit is a tile and KV head with all its chunks. Late tiles see most: they go first.
  void RunWhole(std::int64_t num_units) {
    context_.team.ParallelFor(num_units, [&](std::int64_t unit, std::int32_t thread) {
      const std::int64_t from_end = num_units - 1 - unit;
      const TokenTile& tile = tiles_[static_cast<std::size_t>(from_end / num_kv_heads_)];
      const std::int64_t kv_head = from_end % num_kv_heads_;
      const TileScratch scratch = ScratchOf(thread);
      ClearPartial(scratch.total, NumQueries(tile));
      for (std::int64_t chunk = tile.FirstChunk(); chunk <= tile.LastChunk(); ++chunk) {
        AttendChunk(context_.kernels, call_, tile, kv_head, chunk, scratch, scratch.chunk);
        MergePartial(scratch.total, scratch.chunk, NumQueries(tile));
      }
      WriteOutput(call_, tile, kv_head, scratch.total);
    });
  }

  /// One unit is a single chunk; partials are kept and merged, in the same order, afterwards.
  void RunSplit() {
    const std::vector<Span> spans = MakeSpans();
    const std::int64_t stride = Partial::Stride(head_dim_);
    float* partials = context_.workspace.Get<float>(Scratch::kPartials, num_partials_ * stride);
    const auto partial_of = [&](const Span& span, std::int64_t kv_head) {
      const std::int64_t num_queries = NumQueries(tiles_[static_cast<std::size_t>(span.tile)]);
      return Partial{partials + (span.first_partial + kv_head * num_queries) * stride, head_dim_};
    };
    const auto num_units = static_cast<std::int64_t>(spans.size()) * num_kv_heads_;
    context_.team.ParallelFor(num_units, [&](std::int64_t unit, std::int32_t thread) {
      const Span& span = spans[static_cast<std::size_t>(unit / num_kv_heads_)];
      const std::int64_t kv_head = unit % num_kv_heads_;
      AttendChunk(context_.kernels, call_, tiles_[static_cast<std::size_t>(span.tile)], kv_head,
                  span.chunk, ScratchOf(thread), partial_of(span, kv_head));
    });
    context_.team.ParallelFor(num_kv_heads_, [&](std::int64_t kv_head, std::int32_t thread) {
      MergeSpans(spans, kv_head, ScratchOf(thread).total, partial_of);
    });
  }

  template <typename PartialOf>
  void MergeSpans(const std::vector<Span>& spans, std::int64_t kv_head, const Partial& total,
                  const PartialOf& partial_of) const {
    for (const Span& span : spans) {
      const TokenTile& tile = tiles_[static_cast<std::size_t>(span.tile)];
      if (span.chunk == tile.FirstChunk()) ClearPartial(total, NumQueries(tile));
      MergePartial(total, partial_of(span, kv_head), NumQueries(tile));
      if (span.chunk == tile.LastChunk()) WriteOutput(call_, tile, kv_head, total);
    }
  }

  std::vector<Span> MakeSpans() {
    std::vector<Span> spans;
    num_partials_ = 0;
    for (std::size_t i = 0; i < tiles_.size(); ++i) {
      for (std::int64_t chunk = tiles_[i].FirstChunk(); chunk <= tiles_[i].LastChunk(); ++chunk) {
        spans.push_back({static_cast<std::int64_t>(i), chunk, num_partials_});
        num_partials_ += NumQueries(tiles_[i]) * num_kv_heads_;
      }
    }
    return spans;
  }

  const OpContext& context_;
  const AttentionCall& call_;
  std::vector<TokenTile> tiles_;
  std::int64_t num_kv_heads_;
  std::int64_t head_dim_;
  std::int64_t max_queries_;
  std::int64_t num_partials_ = 0;
  float* scratch_ = nullptr;
  ActivationRow* queries_ = nullptr;
};

}  // namespace

void Attention(const OpContext& context, const AttentionCall& call) {
  if (call.batch.num_tokens == 0) return;
  Runner(context, call).Run();
}

}  // namespace powerinfer
