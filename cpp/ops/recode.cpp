#include "ops/recode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/rounding.h"
#include "kernels/kernel_table.h"
#include "ops/blocking.h"
#include "ops/matrix_rows.h"
#include "quant/superblock.h"

namespace powerinfer {
namespace {

constexpr float kSmallestNoise = 1e-30F;
// 1 - 2 / pi: the variance of x - sign(x) E|x| for a normal x of variance 1.
constexpr float kSignNoise = 0.36338023F;

bool IsCopied(const MatrixView& source, const MatrixView& copy) {
  return source.format == copy.format && source.columns == copy.columns;
}

bool IsRepacked(const MatrixView& source, const MatrixView& copy) {
  return source.format != copy.format && SuperblockFormat(source.format) == copy.format &&
         source.columns == copy.columns;
}

}  // namespace

bool CanRecode(const KernelTable& kernels, Format target) {
  return kernels.encode_row[static_cast<std::size_t>(target)] != nullptr;
}

MatrixView RecodedShape(const MatrixView& source, Format target) {
  MatrixView copy = source;
  copy.data = nullptr;
  copy.columns = RoundUp(source.columns, InfoOf(target).block_size);
  const bool is_superblock = target == Format::kQ4_0 && copy.columns % kSuperblockWeights == 0;
  copy.format = is_superblock ? Format::kQ4_0Superblock : target;
  copy.row_bytes = RowBytes(copy.format, copy.columns);
  return copy;
}

std::int64_t Recode(const OpContext& context, const MatrixView& source, const MatrixView& copy,
                    std::uint8_t* data) {
  const EncodeRowFn encode = context.kernels.encode_row[static_cast<std::size_t>(copy.format)];
  const std::int64_t stride = RoundUp(copy.columns, 16);
  auto* decoded =
      context.workspace.Get<float>(Scratch::kThreadBlocks, stride * context.team.NumThreads());
  std::atomic<std::int64_t> first_bad = copy.rows;
  ForRowsOf(context.team, copy, [&](std::int64_t row, std::int32_t thread) {
    std::uint8_t* out = data + row * copy.row_bytes;
    if (IsCopied(source, copy)) {
      std::memcpy(out, source.Row(row), static_cast<std::size_t>(copy.row_bytes));
    } else if (IsRepacked(source, copy)) {
      RepackToSuperblocks(source.format, source.Row(row), 1, source.columns, out);
    } else {
      float* numbers = decoded + thread * stride;
      DecodeRow(context.kernels, source, row, numbers);
      std::fill(numbers + source.columns, numbers + copy.columns, 0.0F);
      if (!encode(numbers, copy.columns, out)) KeepSmallest(first_bad, row);
    }
  });
  return first_bad.load() < copy.rows ? first_bad.load() : -1;
}

void CopyStatistics(const OpContext& context, const MatrixView& matrix, const MatrixView& copy,
                    const float* mean, const float* variance, float* offset, float* noise) {
  const float sign_noise = copy.format == Format::kSign ? kSignNoise : 0.0F;
  const std::int64_t n = matrix.columns;
  const std::int64_t stride = RoundUp(n, 16) + RoundUp(copy.columns, 16);
  auto* decoded =
      context.workspace.Get<float>(Scratch::kThreadBlocks, stride * context.team.NumThreads());
  ForRowsOf(context.team, copy, [&](std::int64_t row, std::int32_t thread) {
    float* w = decoded + thread * stride;
    float* c = w + RoundUp(n, 16);
    DecodeRow(context.kernels, matrix, row, w);
    DecodeRow(context.kernels, copy, row, c);
    offset[row] = static_cast<float>(SumOfTerms(n, [&](auto j) { return w[j] * mean[j]; }));
    const double square = SumOfTerms(n, [&](auto j) {
      const float error = w[j] - c[j];
      return (error * error + sign_noise * (c[j] * c[j])) * variance[j];
    });
    noise[row] = std::max(static_cast<float>(std::sqrt(square)), kSmallestNoise);
  });
}

}  // namespace powerinfer
