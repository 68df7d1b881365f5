// Signs: out = row . x with both factors as one bit per value.
//
// dot ~= mean|x| * sum over superblocks of scale * (256 - 2 * (number of places whose signs
// differ)). Bound by reading 34 bytes per 256 weights; popcount takes a 64-bit word per cycle, so
// the integer part keeps up without vectors.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/dot_block-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

inline std::uint64_t ReadU64(const std::uint8_t* p) {
  std::uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <int kTokens>
void DotSignRows(const DotArguments& a) {
  const std::int64_t num_groups = a.columns / kSuperblockWeights;
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::uint8_t* row = a.rows + r * a.row_stride;
    const std::int64_t num_bytes = a.BytesFrom(r, num_groups * kSignBytes);
    float sums[kTokens] = {};
    for (std::int64_t g = 0; g < num_groups; ++g) {
      const std::uint8_t* block = row + g * kSignBytes;
      PrefetchAhead<kSignBytes>(row, g * kSignBytes, num_bytes);
      const float scale = ScalarF16(block + kSignScaleAt);
      for (int t = 0; t < kTokens; ++t) {
        const std::uint64_t* signs = a.x[t].sign_bits + 4 * g;
        int differing = 0;
        for (int i = 0; i < 4; ++i)
          differing += __builtin_popcountll(ReadU64(block + 8 * i) ^ signs[i]);
        sums[t] += scale * static_cast<float>(256 - 2 * differing);
      }
    }
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = sums[t] * a.x[t].mean_abs;
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
