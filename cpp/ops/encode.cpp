#include "ops/encode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/rounding.h"
#include "ops/matrix_rows.h"

namespace powerinfer {
namespace {

constexpr float kLeastWeight = 0x1p-24F;

EncodingLoss LossOf(const KernelTable& kernels, std::int64_t n, const float* given,
                    const float* decoded) {
  EncodingLoss loss;
  kernels.squared_loss(given, decoded, n, &loss.squared_error, &loss.squared_sum);
  if (std::isfinite(loss.squared_error + loss.squared_sum)) return loss;
  loss = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const double number = given[i];
    const double off = decoded[i] - number;
    loss.squared_error += off * off;
    loss.squared_sum += number * number;
  }
  return loss;
}

/// Importances in the form that encoders take: relative to the largest of a block, and never 0, so
/// that the step of a block without any is defined too.
std::vector<float> RelativeWeights(const float* importance, std::int64_t columns,
                                   std::int64_t block_size) {
  std::vector<float> weights(static_cast<std::size_t>(columns), 1.0F);
  for (std::int64_t start = 0; start < columns; start += block_size) {
    const float largest = *std::max_element(importance + start, importance + start + block_size);
    if (largest == 0.0F) continue;
    for (std::int64_t i = start; i < start + block_size; ++i) {
      weights[static_cast<std::size_t>(i)] = std::max(importance[i] / largest, kLeastWeight);
    }
  }
  return weights;
}

/// Encodes rows, with weights if they are given and the format uses them.
class RowEncoder {
 public:
  RowEncoder(const KernelTable& kernels, Format target, const float* importance,
             std::int64_t columns)
      : columns_(columns),
        plain_(kernels.encode_row[static_cast<std::size_t>(target)]),
        weighted_(kernels.encode_weighted_row[static_cast<std::size_t>(target)]) {
    if (importance == nullptr || weighted_ == nullptr) return;
    weights_ = RelativeWeights(importance, columns, InfoOf(target).block_size);
  }

  bool operator()(const float* x, std::uint8_t* row) const {
    if (weights_.empty()) return plain_(x, columns_, row);
    return weighted_(x, weights_.data(), columns_, row);
  }

 private:
  std::int64_t columns_;
  EncodeRowFn plain_;
  EncodeWeightedRowFn weighted_;
  std::vector<float> weights_;
};

}  // namespace

std::int64_t EncodeRows(const OpContext& context, const MatrixView& source, Format target,
                        const float* importance, std::uint8_t* out, EncodingLoss* loss) {
  const RowEncoder encode(context.kernels, target, importance, source.columns);
  const DequantizeRowFn decode = context.kernels.dequantize_row[static_cast<std::size_t>(target)];
  const std::int64_t row_bytes = RowBytes(target, source.columns);
  const std::int64_t stride = RoundUp(source.columns, 16);
  auto* scratch =
      context.workspace.Get<float>(Scratch::kThreadBlocks, 2 * stride * context.team.NumThreads());
  std::vector<EncodingLoss> losses(static_cast<std::size_t>(source.rows));
  std::atomic<std::int64_t> first_bad = source.rows;
  ForRowsOf(context.team, source, [&](std::int64_t row, std::int32_t thread) {
    float* given = scratch + 2 * stride * thread;
    float* decoded = given + stride;
    std::uint8_t* bytes = out + row * row_bytes;
    DecodeRow(context.kernels, source, row, given);
    if (!encode(given, bytes)) return KeepSmallest(first_bad, row);
    decode(bytes, source.columns, decoded);
    EncodingLoss& own = losses[static_cast<std::size_t>(row)];
    own = LossOf(context.kernels, source.columns, given, decoded);
    // Formats without blocks take NaN, and f16 makes infinities of large numbers.
    if (!std::isfinite(own.squared_error)) KeepSmallest(first_bad, row);
  });
  for (const EncodingLoss& own : losses) {
    loss->squared_error += own.squared_error;
    loss->squared_sum += own.squared_sum;
  }
  return first_bad.load() < source.rows ? first_bad.load() : -1;
}

}  // namespace powerinfer
