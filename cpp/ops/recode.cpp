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

constexpr std::int64_t kSumLanes = 16;
// Terms added in f32; their sums are added in double.
constexpr std::int64_t kSumBlock = 256;
constexpr float kSmallestNoise = 1e-30F;
// 1 - 2 / pi: the variance of x - sign(x) E|x| for a normal x of variance 1.
constexpr float kSignNoise = 0.36338023F;

/// Sum of term(j) for j in [0, n), in one order.
template <typename Term>
double SumOfTerms(std::int64_t n, const Term& term) {
  double sum = 0.0;
  for (std::int64_t block = 0; block < n; block += kSumBlock) {
    const std::int64_t end = std::min(n, block + kSumBlock);
    float lanes[kSumLanes] = {};
    std::int64_t j = block;
    for (; j + kSumLanes <= end; j += kSumLanes) {
      for (std::int64_t lane = 0; lane < kSumLanes; ++lane) lanes[lane] += term(j + lane);
    }
    for (std::int64_t lane = 0; j < end; ++j, ++lane) lanes[lane] += term(j);
    for (const float lane : lanes) sum += static_cast<double>(lane);
  }
  return sum;
}

bool IsCopied(const MatrixView& source, const MatrixView& copy) {
  return source.format == copy.format && source.columns == copy.columns;
}

bool IsRepacked(const MatrixView& source, const MatrixView& copy) {
  return source.format != copy.format && SuperblockFormat(source.format) == copy.format &&
         source.columns == copy.columns;
}

/// The inverse.
bool IsUnpacked(const MatrixView& source, const MatrixView& copy) {
  return source.format != copy.format && FileFormat(source.format) == copy.format &&
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
    } else if (IsUnpacked(source, copy)) {
      RepackFromSuperblocks(copy.format, source.Row(row), 1, source.columns, out);
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
