// Encoders of the formats of 32 weights for errors that have weights, and rows of tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/encode_legacy-inl.h"
#include "kernels/isa/shared/encode_search-inl.h"
#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Q4_0, Q5_0 and Q8_0 with weights: up to sixteen blocks.
template <int kBits>
inline bool EncodeSignedWeighted(const float* x, const float* weights, int count,
                                 std::uint8_t* out) {
  constexpr auto kMiddle = static_cast<float>(1 << (kBits - 1));
  constexpr float kLow = kBits == 8 ? -127.0F : -kMiddle;
  constexpr int kBytes = 2 + 4 * kBits;
  GroupTile<32> tile;
  TileCodes<32> codes;
  StoredScale steps[kGroups];
  if (!tile.Load<1>(x, weights, count, (kMiddle - (kBits == 8 ? 1 : 0)) * kMaxHalf)) return false;
  for (int first = 0; first < kGroups; first += kWidth) {
    const GroupPart<32> part{&tile, first};
    Lanes scale;
    Lanes inverse;
    Lanes chosen[32];
    Fit fit;
    FitSigned<32>(part, kLow, kMiddle - 1.0F, &fit);
    for (int lane = 0; lane < kWidth; ++lane) {
      steps[first + lane] = RoundScale(fit.scale[lane], tile.ranges[first + lane]);
      scale[lane] = steps[first + lane].value;
    }
    InvertSteps(scale, &inverse);
    NearestCodes<32>(part, Lanes{}, inverse, kLow, kMiddle - 1.0F, chosen);
    codes.Set(first, chosen, kBits == 8 ? 0.0F : kMiddle);
  }
  for (int block = 0; block < count; ++block, out += kBytes) {
    std::memcpy(out, &steps[block].half, 2);
    if constexpr (kBits == 8) {
      std::memcpy(out + 2, codes.codes[block], 32);
    } else {
      WriteCodes<kBits>(codes.codes[block], out + 2);
    }
  }
  return true;
}

/// Q4_1 and Q5_1 with weights: up to sixteen blocks.
template <int kBits>
inline bool EncodeOffsetWeighted(const float* x, const float* weights, int count,
                                 std::uint8_t* out) {
  constexpr auto kLast = static_cast<float>((1 << kBits) - 1);
  constexpr int kBytes = 4 + 4 * kBits;
  GroupTile<32> tile;
  TileCodes<32> codes;
  StoredScale steps[kGroups];
  StoredScale bases[kGroups];
  if (!tile.Load<1>(x, weights, count, kMaxHalf)) return false;
  for (int first = 0; first < kGroups; first += kWidth) {
    const GroupPart<32> part{&tile, first};
    Lanes scale;
    Lanes base;
    Lanes inverse;
    Lanes chosen[32];
    GroupSums sums;
    Fit fit;
    FitOffset<32, false>(part, kLast, &sums, &fit);
    for (int lane = 0; lane < kWidth; ++lane) {
      steps[first + lane] = RoundScale(fit.scale[lane], tile.ranges[first + lane]);
      bases[first + lane] = RoundScale(fit.base[lane], tile.ranges[first + lane]);
      scale[lane] = steps[first + lane].value;
      base[lane] = bases[first + lane].value;
    }
    InvertSteps(scale, &inverse);
    NearestCodes<32>(part, base, inverse, 0.0F, kLast, chosen);
    codes.Set(first, chosen, 0.0F);
  }
  for (int block = 0; block < count; ++block, out += kBytes) {
    std::memcpy(out, &steps[block].half, 2);
    std::memcpy(out + 2, &bases[block].half, 2);
    WriteCodes<kBits>(codes.codes[block], out + 4);
  }
  return true;
}

/// Encodes `count` blocks; weights may be null.
using TileEncoder = bool (*)(const float* x, const float* weights, int count, std::uint8_t* out);

/// Up to kCount blocks at a time.
template <TileEncoder kEncode, int kCount, Format kFormat>
bool EncodeTiledRow(const float* x, const float* weights, std::int64_t columns, std::uint8_t* row) {
  constexpr FormatInfo kInfo = kFormatInfo[static_cast<std::size_t>(kFormat)];
  const std::int64_t blocks = columns / kInfo.block_size;
  for (std::int64_t block = 0; block < blocks; block += kCount) {
    const std::int64_t left = blocks - block;
    const std::int64_t at = block * kInfo.block_size;
    if (!kEncode(x + at, weights == nullptr ? nullptr : weights + at,
                 static_cast<int>(left < kCount ? left : kCount),
                 row + block * kInfo.block_bytes)) {
      return false;
    }
  }
  return true;
}

/// Without weights.
template <EncodeWeightedRowFn kEncodeRow>
bool EncodePlainRow(const float* x, std::int64_t columns, std::uint8_t* row) {
  return kEncodeRow(x, nullptr, columns, row);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
