#include "ops/linear.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "base/chunk_spans.h"
#include "base/rounding.h"
#include "ops/blocked_product.h"
#include "ops/int8_linear.h"

namespace powerinfer {
namespace {

// Weight bytes handed out at a time, at most those of ReadWay. Long chunks let the processor's
// prefetchers run, short ones keep many threads equally busy: a thread gets from four to sixteen,
// where these sizes allow it. No result depends on the choice: a row is one thread's.
constexpr std::int64_t kMinChunkBytes = 8 * 1024;
constexpr std::int64_t kLongChunkBytes = 48 * 1024;
// Below this many numbers, quantizing on the calling thread is faster than waking the team.
constexpr std::int64_t kParallelQuantizeSize = 32 * 1024;

// Float tiles of several tokens load activations nearly as often as they multiply. A vector that
// crosses a cache line is two loads, and rows a multiple of kCrowdedBytes apart share the same few
// places of the first cache.
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kCrowdedBytes = 4096;
constexpr std::int64_t kMinTiledTokens = 3;

bool UsesInt8(Format format) { return InfoOf(format).uses_int8_activations(); }

bool UsesSigns(Format format) { return InfoOf(format).activations == ActivationForm::kSigns; }

bool UsesFloats(Format format) { return InfoOf(format).activations == ActivationForm::kFloat; }

/// True if float tiles read copies of the rows faster than the rows themselves.
bool IsSlowToTile(RowsView<const float> x) {
  if (x.rows < kMinTiledTokens) return false;
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data));
  const std::int64_t stride = x.stride * std::int64_t{sizeof(float)};
  return address % kLineBytes != 0 || stride % kLineBytes != 0 || stride % kCrowdedBytes == 0;
}

/// Offsets, in the scratch bytes of one token, of the forms of the activations that some formats
/// need besides the f32 of the caller. All but copies are padded with zeros to whole groups.
struct PreparedLayout {
  const KernelTable& kernels;
  std::int64_t columns;
  std::int64_t padded;
  bool is_quantized = false, is_permuted = false, is_signed = false, is_copied = false;
  std::int64_t scales_at = 0;     // after values and permuted values
  std::int64_t half_sums_at = 0;  // after scales and sums
  std::int64_t signs_at = 0;
  std::int64_t floats_at = 0;
  std::int64_t row_bytes = 0;

  PreparedLayout(const OpContext& context, RowsView<const float> x, std::span<const Format> formats)
      : kernels(context.kernels),
        columns(x.columns),
        padded(RoundUp(columns, kernels.group_weights)) {
    const bool is_slow = context.rows == RowKind::kDecode && IsSlowToTile(x);
    for (const Format format : formats) {
      is_quantized |= UsesInt8(format);
      is_permuted |= InfoOf(format).activations == ActivationForm::kPermutedInt8 ||
                     (context.rows == RowKind::kPrompt && kernels.int8.reads_permuted &&
                      kernels.int8.Takes(format));
      is_signed |= UsesSigns(format);
      is_copied |= is_slow && UsesFloats(format);
    }
    constexpr std::int64_t kNumber = sizeof(float);
    scales_at = is_quantized ? 2 * padded : 0;
    half_sums_at = scales_at + (is_quantized ? 2 * (padded / 32) * kNumber : 0);
    signs_at = RoundUp(half_sums_at + (is_permuted ? padded / 16 * kNumber : 0), 64);
    floats_at = RoundUp(signs_at + (is_signed ? columns / 8 : 0), kLineBytes);
    row_bytes = floats_at + (is_copied ? RoundUp(columns * kNumber, kLineBytes) : 0);
    if (is_copied && row_bytes % kCrowdedBytes == 0) row_bytes += kLineBytes;
  }

  void Prepare(const float* x, std::int8_t* scratch, ActivationRow* row) const {
    if (is_copied) {
      auto* values = reinterpret_cast<float*>(scratch + floats_at);
      std::copy_n(x, columns, values);
      row->values = values;
    }
    if (is_quantized) Quantize(x, scratch, row);
    if (!is_signed) return;
    auto* bits = reinterpret_cast<std::uint64_t*>(scratch + signs_at);
    row->sign_bits = bits;
    row->mean_abs = kernels.binarize(x, columns, bits);
  }

 private:
  void Quantize(const float* x, std::int8_t* scratch, ActivationRow* row) const {
    auto* scales = reinterpret_cast<float*>(scratch + scales_at);
    float* sums = scales + padded / 32;
    kernels.quantize(x, columns, scratch, scales, sums);
    row->quantized = {scratch, nullptr, scales, sums, columns};
    if (!is_permuted) return;
    std::fill(scratch + columns, scratch + padded, std::int8_t{0});
    std::fill(scales + columns / 32, scales + padded / 32, 0.0F);
    std::fill(sums + columns / 32, sums + padded / 32, 0.0F);
    auto* half_sums = reinterpret_cast<std::int32_t*>(scratch + half_sums_at);
    kernels.permute(scratch, padded, scratch + padded, half_sums);
    row->quantized.permuted = scratch + padded;
    row->quantized.half_sums = half_sums;
  }
};

std::int64_t ChunkBytes(std::span<const LinearItem> items, std::int64_t num_tokens,
                        std::int32_t num_threads) {
  // Read once for every kMaxDotTokens tokens: data that is read again should still be in the cache.
  if (num_tokens > kMaxDotTokens) return kLongChunkBytes;
  std::int64_t bytes = 0;
  for (const LinearItem& item : items) bytes += item.matrix.NumBytes();
  const std::int64_t own = bytes / num_threads;
  return std::max(own / 16, std::clamp(own / 4, kMinChunkBytes, kLongChunkBytes));
}

/// Cuts matrices into chunks of about `bytes` bytes.
struct Chunks {
  std::int64_t bytes;
  const ReadWays& ways;

  std::int64_t Rows(const MatrixView& matrix) const {
    const std::int64_t most = std::min(bytes, ways.Of(matrix.format).chunk_bytes);
    return std::max<std::int64_t>(1, most / std::max<std::int64_t>(1, matrix.row_bytes));
  }
  std::int64_t Count(const MatrixView& matrix) const { return DivideUp(matrix.rows, Rows(matrix)); }
};

/// Products of `count` rows from `first` with all tokens.
void DotRows(const OpContext& context, const LinearItem& item, std::int64_t first,
             std::int64_t count, const ActivationRow* x, std::int64_t num_tokens) {
  const MatrixView& matrix = item.matrix;
  const std::int64_t ahead = context.ways.Ahead(matrix.format, num_tokens);
  const DotRowsFn dot_rows = context.kernels.dot_rows[static_cast<std::size_t>(matrix.format)];
  for (std::int64_t token = 0; token < num_tokens; token += kMaxDotTokens) {
    const std::int64_t tokens = std::min(kMaxDotTokens, num_tokens - token);
    dot_rows(matrix.Row(first), matrix.row_bytes, count, matrix.columns, x + token, tokens,
             item.out.Row(token) + first, item.out.stride, ahead);
  }
  if (item.bias == nullptr) return;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    float* out = item.out.Row(token);
    for (std::int64_t row = first; row < first + count; ++row) out[row] += item.bias[row];
  }
}

/// Products by the dot kernels.
void DotLinear(const OpContext& context, RowsView<const float> x,
               std::span<const LinearItem> items) {
  if (items.empty()) return;
  const ActivationRow* rows = PrepareActivations(context, x, items);
  const Chunks chunks{ChunkBytes(items, x.rows, context.team.NumThreads()), context.ways};
  std::int64_t num_chunks = 0;
  for (const LinearItem& item : items) num_chunks += chunks.Count(item.matrix);
  const auto run = [&](std::int64_t chunk) {
    const LinearItem* item = items.data();
    for (; chunk >= chunks.Count(item->matrix); ++item) chunk -= chunks.Count(item->matrix);
    const std::int64_t num_rows = chunks.Rows(item->matrix);
    const std::int64_t first = chunk * num_rows;
    DotRows(context, *item, first, std::min(num_rows, item->matrix.rows - first), rows, x.rows);
  };
  ForChunksInSpans(context.team, num_chunks, run);
}

/// Items grouped by the product of their prompt rows.
struct PromptItems {
  std::vector<LinearItem> int8, blocked, bf16, dots;

  PromptItems(const KernelTable& kernels, std::span<const LinearItem> items) {
    for (const LinearItem& item : items) {
      Of(kernels, item.matrix.format).push_back(item);
    }
  }

 private:
  std::vector<LinearItem>& Of(const KernelTable& kernels, Format format) {
    if (UsesSigns(format)) return dots;
    if (kernels.UsesInt8Products(format)) return int8;
    return &kernels.GemmFor(format) == &kernels.bf16 ? bf16 : blocked;
  }
};

}  // namespace

const ActivationRow* PrepareActivations(const OpContext& context, RowsView<const float> x,
                                        std::span<const Format> formats) {
  auto* rows = context.workspace.Get<ActivationRow>(Scratch::kActivationRows, x.rows);
  for (std::int64_t i = 0; i < x.rows; ++i) rows[i] = ActivationRow{x.Row(i), {}, nullptr, 0.0F};
  const PreparedLayout layout(context, x, formats);
  if (layout.row_bytes == 0) return rows;
  auto* scratch =
      context.workspace.Get<std::int8_t>(Scratch::kQuantized, x.rows * layout.row_bytes);
  const auto prepare = [&](std::int64_t i, std::int32_t) {
    layout.Prepare(x.Row(i), scratch + i * layout.row_bytes, rows + i);
  };
  if (x.rows * x.columns >= kParallelQuantizeSize) {
    context.team.ParallelFor(x.rows, std::ref(prepare));
  } else {
    for (std::int64_t i = 0; i < x.rows; ++i) prepare(i, 0);
  }
  return rows;
}

const ActivationRow* PrepareActivations(const OpContext& context, RowsView<const float> x,
                                        std::span<const LinearItem> items) {
  std::vector<Format> formats;
  for (const LinearItem& item : items) formats.push_back(item.matrix.format);
  return PrepareActivations(context, x, formats);
}

void Linear(const OpContext& context, RowsView<const float> x, std::span<const LinearItem> items) {
  if (x.rows == 0 || items.empty()) return;
  if (context.rows == RowKind::kDecode) {
    DotLinear(context, x, items);
    return;
  }
  const PromptItems prompt(context.kernels, items);
  Int8Linear(context, x, prompt.int8);
  BlockedLinear(context, x, prompt.blocked);
  BlockedLinear(context, x, prompt.bf16);
  DotLinear(context, x, prompt.dots);
}

}  // namespace powerinfer
