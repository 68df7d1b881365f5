// Products of one f32 row with listed tokens, sums of listed f32 rows, and the lists: for neurons
// that fire for few tokens of a block.
//
// Rows are whole vectors, padded with zeros. Every result is one chain of multiply-adds per lane in
// the order of the columns (or of the list), so its bits do not depend on its place in a list.
// Bound by the second-level cache: four bytes per multiply-add.
#pragma once

#include <cstdint>

#include "kernels/isa/shared/dot_float-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

template <int kTokens>
inline void DotListedTokens(const float* row, std::int64_t columns, const float* x,
                            std::int64_t x_stride, const std::uint16_t* tokens, float* out) {
  const float* inputs[kTokens];
  VecF sums[kTokens];
  for (int j = 0; j < kTokens; ++j) {
    inputs[j] = x + tokens[j] * x_stride;
    sums[j] = Zero();
  }
  for (std::int64_t k = 0; k < columns; k += kLanes) {
    const VecF weights = Load(row + k);
    for (int j = 0; j < kTokens; ++j) sums[j] = Fma(weights, Load(inputs[j] + k), sums[j]);
  }
  for (int j = 0; j < kTokens; ++j) out[j] += Sum(sums[j]);
}

void DotListed(const float* row, std::int64_t columns, const float* x, std::int64_t x_stride,
               const std::uint16_t* tokens, std::int64_t count, float* out) {
  for (; count >= 8; count -= 8, tokens += 8, out += 8) {
    DotListedTokens<8>(row, columns, x, x_stride, tokens, out);
  }
  if (count >= 4) {
    DotListedTokens<4>(row, columns, x, x_stride, tokens, out);
    count -= 4, tokens += 4, out += 4;
  }
  if (count >= 2) {
    DotListedTokens<2>(row, columns, x, x_stride, tokens, out);
    count -= 2, tokens += 2, out += 2;
  }
  if (count == 1) DotListedTokens<1>(row, columns, x, x_stride, tokens, out);
}

template <int kVectors>
inline void AddListedColumns(const float* rows, std::int64_t stride, const std::int32_t* places,
                             std::int64_t first, const float* weights, std::int64_t count,
                             float* y) {
  VecF sums[kVectors];
  for (int u = 0; u < kVectors; ++u) sums[u] = Load(y + u * kLanes);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = rows + (places[i] - first) * stride;
    const VecF weight = Broadcast(weights[i]);
    for (int u = 0; u < kVectors; ++u) sums[u] = Fma(Load(row + u * kLanes), weight, sums[u]);
  }
  for (int u = 0; u < kVectors; ++u) Store(y + u * kLanes, sums[u]);
}

void AddListed(const float* rows, std::int64_t stride, const std::int32_t* places,
               std::int64_t first, const float* weights, std::int64_t count, std::int64_t columns,
               float* y) {
  constexpr int kUnroll = 8;  // two multiply-adds a cycle at a latency of four
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= columns; i += kUnroll * kLanes) {
    AddListedColumns<kUnroll>(rows + i, stride, places, first, weights, count, y + i);
  }
  for (; i < columns; i += kLanes) {
    AddListedColumns<1>(rows + i, stride, places, first, weights, count, y + i);
  }
}

/// Every id is written, but the end moves on only for those that fire: no branch to mispredict.
template <bool kAtThreshold>
inline std::int64_t ListFiringFrom(const float* z, std::int64_t begin, std::int64_t n,
                                   float threshold, std::int64_t count, std::int32_t* ids) {
  for (std::int64_t i = begin; i < n; ++i) {
    ids[count] = static_cast<std::int32_t>(i);
    count += (kAtThreshold ? !(z[i] < threshold) : !(z[i] <= threshold)) ? 1 : 0;
  }
  return count;
}

template <bool kAtThreshold>
std::int64_t ListFiring(const float* z, std::int64_t n, float threshold, std::int32_t* ids) {
  std::int64_t count = 0;
  std::int64_t i = 0;
#if defined(__AVX512F__)
  constexpr int kFires = kAtThreshold ? _CMP_NLT_UQ : _CMP_NLE_UQ;
  const __m512 limit = _mm512_set1_ps(threshold);
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i + 16 <= n; i += 16) {
    const __mmask16 fires = _mm512_cmp_ps_mask(_mm512_loadu_ps(z + i), limit, kFires);
    const __m512i all = _mm512_add_epi32(first, _mm512_set1_epi32(static_cast<int>(i)));
    // Up to sixteen places beyond the last that counts, all below n.
    _mm512_storeu_si512(ids + count, _mm512_maskz_compress_epi32(fires, all));
    count += __builtin_popcount(fires);
  }
#elif defined(__AVX2__)
  constexpr int kFires = kAtThreshold ? _CMP_NLT_UQ : _CMP_NLE_UQ;
  const __m256 limit = _mm256_set1_ps(threshold);
  for (; i + 8 <= n; i += 8) {
    auto fires = static_cast<std::uint32_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(z + i), limit, kFires)));
    for (; fires != 0; fires &= fires - 1) {
      ids[count++] = static_cast<std::int32_t>(i) + __builtin_ctz(fires);
    }
  }
#endif
  return ListFiringFrom<kAtThreshold>(z, i, n, threshold, count, ids);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
