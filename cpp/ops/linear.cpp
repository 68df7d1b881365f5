#include "ops/linear.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>

#include "ops/blocked_product.h"

namespace powerinfer {
namespace {

// Weight bytes handed out at a time: some microseconds of work, so that neither the hand-out nor a
// slow thread at the end costs much.
constexpr std::int64_t kChunkBytes = 48 * 1024;
// Below this many numbers the caller quantizes faster alone than it wakes the team.
constexpr std::int64_t kParallelQuantizeSize = 32 * 1024;

bool UsesInt8(Format format) { return InfoOf(format).uses_int8_activations; }

struct QuantizedLayout {
  std::int64_t num_blocks;
  std::int64_t row_bytes;  // of one token: values, permuted values, scales, sums

  explicit QuantizedLayout(std::int64_t columns) : num_blocks(columns / 32) {
    const std::int64_t bytes = 2 * columns + 2 * num_blocks * std::int64_t{sizeof(float)};
    row_bytes = (bytes + 63) / 64 * 64;
  }
};

void QuantizeRow(const float* x, std::int64_t columns, bool is_permuted, std::int8_t* scratch,
                 ActivationRow* row) {
  const KernelTable& kernels = Kernels();
  std::int8_t* values = scratch;
  std::int8_t* permuted = scratch + columns;
  auto* scales = reinterpret_cast<float*>(permuted + columns);
  float* sums = scales + columns / 32;
  kernels.quantize(x, columns, values, scales, sums);
  if (is_permuted) kernels.permute_superblock(values, columns, permuted);
  row->quantized = {values, is_permuted ? permuted : nullptr, scales, sums, columns};
}

std::int64_t RowsPerChunk(const MatrixView& matrix) {
  return std::max<std::int64_t>(1, kChunkBytes / std::max<std::int64_t>(1, matrix.row_bytes));
}

std::int64_t NumChunks(const MatrixView& matrix) {
  const std::int64_t rows = RowsPerChunk(matrix);
  return (matrix.rows + rows - 1) / rows;
}

void DotChunk(const LinearItem& item, std::int64_t chunk, const ActivationRow* x,
              std::int64_t num_tokens) {
  const MatrixView& matrix = item.matrix;
  const std::int64_t first = chunk * RowsPerChunk(matrix);
  const std::int64_t count = std::min(RowsPerChunk(matrix), matrix.rows - first);
  const DotRowsFn dot_rows = Kernels().dot_rows[static_cast<std::size_t>(matrix.format)];
  for (std::int64_t token = 0; token < num_tokens; token += kMaxDotTokens) {
    const std::int64_t tokens = std::min(kMaxDotTokens, num_tokens - token);
    dot_rows(matrix.Row(first), matrix.row_bytes, count, matrix.columns, x + token, tokens,
             item.out.Row(token) + first, item.out.stride);
  }
  if (item.bias == nullptr) return;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    float* out = item.out.Row(token);
    for (std::int64_t row = first; row < first + count; ++row) out[row] += item.bias[row];
  }
}

}  // namespace

std::int64_t GemmTokens(std::span<const Format> formats) {
  const GemmKernel& gemm = Kernels().gemm;
  const bool is_int8 = std::all_of(formats.begin(), formats.end(), UsesInt8);
  return is_int8 ? gemm.min_tokens_int8 : gemm.min_tokens_float;
}

const ActivationRow* PrepareActivations(ThreadTeam& team, Workspace& workspace,
                                        RowsView<const float> x, std::span<const Format> formats) {
  auto* rows = workspace.Get<ActivationRow>(Scratch::kActivationRows, x.rows);
  for (std::int64_t i = 0; i < x.rows; ++i) rows[i] = ActivationRow{x.Row(i), {}};
  if (std::none_of(formats.begin(), formats.end(), UsesInt8)) return rows;
  const bool is_permuted =
      std::find(formats.begin(), formats.end(), Format::kQ4_0Superblock) != formats.end();
  const QuantizedLayout layout(x.columns);
  auto* scratch = workspace.Get<std::int8_t>(Scratch::kQuantized, x.rows * layout.row_bytes);
  const auto quantize = [&](std::int64_t i, std::int32_t) {
    QuantizeRow(x.Row(i), x.columns, is_permuted, scratch + i * layout.row_bytes, rows + i);
  };
  if (x.rows * x.columns >= kParallelQuantizeSize) {
    team.ParallelFor(x.rows, std::ref(quantize));
  } else {
    for (std::int64_t i = 0; i < x.rows; ++i) quantize(i, 0);
  }
  return rows;
}

void LinearPrepared(ThreadTeam& team, const ActivationRow* x, std::int64_t num_tokens,
                    std::span<const LinearItem> items) {
  std::int64_t num_chunks = 0;
  for (const LinearItem& item : items) num_chunks += NumChunks(item.matrix);
  const auto run = [&](std::int64_t chunk, std::int32_t) {
    std::size_t index = 0;
    while (chunk >= NumChunks(items[index].matrix)) {
      chunk -= NumChunks(items[index].matrix);
      ++index;
    }
    DotChunk(items[index], chunk, x, num_tokens);
  };
  team.ParallelFor(num_chunks, std::ref(run));
}

void Linear(ThreadTeam& team, Workspace& workspace, RowsView<const float> x,
            std::span<const LinearItem> items) {
  if (x.rows == 0 || items.empty()) return;
  std::array<Format, kNumFormats> formats;
  std::size_t num_formats = 0;
  for (const LinearItem& item : items) {
    const auto end = formats.begin() + static_cast<std::ptrdiff_t>(num_formats);
    if (std::find(formats.begin(), end, item.matrix.format) != end) continue;
    formats[num_formats++] = item.matrix.format;
  }
  const std::span<const Format> used(formats.data(), num_formats);
  if (x.rows >= GemmTokens(used)) {
    BlockedLinear(team, workspace, x, items);
    return;
  }
  const ActivationRow* rows = PrepareActivations(team, workspace, x, used);
  LinearPrepared(team, rows, x.rows, items);
}

}  // namespace powerinfer
