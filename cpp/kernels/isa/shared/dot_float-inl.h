// out = row . x for f32, f16 and bf16 rows and f32 activations.
//
// Four accumulators hide the latency of the multiply-add; the last, incomplete vectors are padded
// with zeros. Bound by reading the row: 4 or 2 bytes per weight.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_block-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

struct F32Weights {
  static constexpr std::int64_t kBytes = 4;
  static VecF LoadVec(const std::uint8_t* p) { return Load(p); }
};
struct F16Weights {
  static constexpr std::int64_t kBytes = 2;
  static VecF LoadVec(const std::uint8_t* p) { return LoadF16(p); }
};
struct Bf16Weights {
  static constexpr std::int64_t kBytes = 2;
  static VecF LoadVec(const std::uint8_t* p) { return LoadBf16(p); }
};

/// sum[t] = row . x[t]; every token sums in the same order for any kTokens. Of the `num_bytes` from
/// the start of the row on, what lies `ahead` is prefetched.
template <class Weights, int kTokens>
inline void DotFloatRow(const std::uint8_t* row, std::int64_t columns, std::int64_t ahead,
                        std::int64_t num_bytes, const float* const* x, float* sum) {
  constexpr int kUnroll = 4;
  VecF total[kTokens][kUnroll];
  for (int t = 0; t < kTokens; ++t) {
    for (int u = 0; u < kUnroll; ++u) total[t][u] = Zero();
  }
  std::int64_t i = 0;
  for (; i + kUnroll * kLanes <= columns; i += kUnroll * kLanes) {
    PrefetchAhead<kUnroll * kLanes * Weights::kBytes>(row, i * Weights::kBytes, ahead, num_bytes);
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      const VecF w = Weights::LoadVec(row + (i + u * kLanes) * Weights::kBytes);
      for (int t = 0; t < kTokens; ++t) {
        total[t][u] = Fma(w, Load(x[t] + i + u * kLanes), total[t][u]);
      }
    }
  }
  for (; i < columns; i += kLanes) {
    const std::int64_t rest = columns - i < kLanes ? columns - i : kLanes;
    std::uint8_t w_tail[4 * kLanes] = {};
    float x_tail[kLanes] = {};
    std::memcpy(w_tail, row + i * Weights::kBytes,
                static_cast<std::size_t>(rest * Weights::kBytes));
    const VecF w = Weights::LoadVec(w_tail);
    for (int t = 0; t < kTokens; ++t) {
      std::memcpy(x_tail, x[t] + i, static_cast<std::size_t>(rest) * sizeof(float));
      total[t][0] = Fma(w, Load(x_tail), total[t][0]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    sum[t] = Sum(Add(Add(total[t][0], total[t][1]), Add(total[t][2], total[t][3])));
  }
}

template <class Weights, int kTokens>
void DotFloatRows(const DotArguments& a) {
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = a.x[t].values;
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t num_bytes = a.BytesFrom(r, a.columns * Weights::kBytes);
    float sums[kTokens];
    DotFloatRow<Weights, kTokens>(a.rows + r * a.row_stride, a.columns, a.ahead, num_bytes, x,
                                  sums);
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = sums[t];
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
