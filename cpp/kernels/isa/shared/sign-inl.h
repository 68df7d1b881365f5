// Signs: out = row . x with both factors as one bit per value.
//
// dot ~= mean|x| * sum over superblocks of scale * (256 - 2 * (number of places whose signs
// differ)). Bound by reading 34 bytes per 256 weights; popcount takes a 64-bit word per cycle, so
// the integer part keeps up without vectors. Signs and scales are made here too, for rows and for
// activations; the bytes are those of quant/formats/sign.py in every instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/lanes-inl.h"

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
      PrefetchAhead<kSignBytes>(row, g * kSignBytes, a.ahead, num_bytes);
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

/// kPlaceBits[i] has bit i set.
struct PlaceBits {
  std::int32_t bit[32];
  constexpr PlaceBits() : bit() {
    for (int i = 0; i < 32; ++i) bit[i] = static_cast<std::int32_t>(std::uint32_t{1} << i);
  }
};
constexpr PlaceBits kPlaceBits;

/// Bit i is set where x[i] < 0, and, if zeros alternate, at odd places also where x[i] is zero.
template <bool kAlternateZeros>
ENCODE_INLINE std::uint32_t SignBits32(const float* x) {
  IntLanes found = {};
  for (int i = 0; i < kVectors; ++i) {
    const Lanes values = LanesAt(x + i * kWidth);
    IntLanes places;
    std::memcpy(&places, kPlaceBits.bit + i * kWidth, sizeof places);
    IntLanes is_negative = values < 0.0F;
    if constexpr (kAlternateZeros) is_negative |= (values == 0.0F) & ((places & 0x55555555) == 0);
    found |= is_negative & places;
  }
  std::uint32_t lanes[kWidth];
  std::memcpy(lanes, &found, sizeof lanes);
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] |= lanes[i + half];
  }
  return lanes[0];
}

bool EncodeSign(const float* x, std::uint8_t* block) {
  MagnitudeSum magnitudes;
  for (int b = 0; b < 8; ++b) {
    const float* part = x + 32 * b;
    float largest;
    if (!LargestWithin(part, kMaxHalf, &largest)) return false;
    magnitudes.Add16(part);
    magnitudes.Add16(part + 16);
    const std::uint32_t bits = SignBits32<true>(part);
    std::memcpy(block + 4 * b, &bits, sizeof bits);
  }
  WriteHalf(block + kSignScaleAt, magnitudes.Mean(x, 256));
  return true;
}

/// Signs of activations: see `binarize` in kernels/kernel_table.h.
float Binarize(const float* x, std::int64_t n, std::uint64_t* bits) {
  MagnitudeSum magnitudes;
  for (std::int64_t at = 0; at < n; at += 64) {
    const std::uint32_t low = SignBits32<false>(x + at);
    bits[at / 64] = low | std::uint64_t{SignBits32<false>(x + at + 32)} << 32;
    for (int i = 0; i < 64; i += 16) magnitudes.Add16(x + at + i);
  }
  return magnitudes.Mean(x, n);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
