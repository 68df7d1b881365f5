// Encoders of K-quants: groups whose scales are multiples of one that 256 weights share.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/encode_search-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr float kLastSixBits = 63.0F;
/// Stored scales that are tried: the nearest to the one found, and so many steps around it.
constexpr float kOffsetSteps[] = {-1.0F, 0.0F, 1.0F};
constexpr float kSignedSteps[] = {-2.0F, -1.0F, 0.0F, 1.0F, 2.0F};

/// What groups store, in units of d and dmin, and its error.
struct StoredFit {
  Lanes scale, minimum, error;

  ENCODE_INLINE void Keep(const Lanes& own_scale, const Lanes& own_minimum, const Fit& fit) {
    const IntLanes is_better = fit.error < error;
    scale = is_better ? own_scale : scale;
    minimum = is_better ? own_minimum : minimum;
    error = is_better ? fit.error : error;
  }
};

/// d and dmin, as they will be stored, and the fits of groups without that rounding.
struct GroupFits {
  GroupValues scale, base, sum_weights, sum_numbers;
  GroupValues d, dmin;
  std::uint16_t d_half[2], dmin_half[2];  ///< of the two blocks in a tile of Q4_K or Q5_K

  /// The largest scale and the lowest base of a block's eight groups are 63 units.
  void ShareUnits(const Range* ranges) {
    for (int block = 0; block < 2; ++block) {
      float largest = 0.0F;
      float lowest = 0.0F;
      for (int i = 8 * block; i < 8 * block + 8; ++i) {
        largest = scale.values[i] > largest ? scale.values[i] : largest;
        lowest = base.values[i] < lowest ? base.values[i] : lowest;
      }
      const StoredScale unit = RoundScale(largest / kLastSixBits, ranges[8 * block]);
      const StoredScale minimum = RoundScale((0.0F - lowest) / kLastSixBits, ranges[8 * block]);
      d_half[block] = unit.half;
      dmin_half[block] = minimum.half;
      for (int i = 8 * block; i < 8 * block + 8; ++i) {
        d.values[i] = unit.value;
        dmin.values[i] = minimum.value;
      }
    }
  }
};

/// For a stored scale: the stored minimum that fits its codes, codes again, and their error.
ENCODE_INLINE void TryStored(const GroupPart<32>& part, const GroupFits& fits, const Lanes& step,
                             float last, StoredFit* best) {
  Lanes codes[32];
  Lanes inverse;
  Lanes inverse_dmin;
  Lanes sum{};
  Fit fit;
  fit.scale = fits.d.At(part.first) * step;
  InvertSteps(fit.scale, &inverse);
  InvertSteps(fits.dmin.At(part.first), &inverse_dmin);
  NearestCodes<32>(part, fits.base.At(part.first), inverse, 0.0F, last, codes);
  for (int i = 0; i < 32; ++i) sum += part.W(i) * codes[i];
  const Lanes above = fit.scale * sum - fits.sum_numbers.At(part.first);
  Lanes minimum = above / fits.sum_weights.At(part.first) * inverse_dmin;
  RoundBetween(&minimum, 0.0F, kLastSixBits);
  fit.base = 0.0F - fits.dmin.At(part.first) * minimum;
  NearestCodes<32>(part, fit.base, inverse, 0.0F, last, codes);
  FindError<32>(part, codes, &fit);
  best->Keep(step, minimum, fit);
}

/// Stored scales, minima and codes of kWidth groups.
ENCODE_INLINE void StoreOffsetPart(const GroupPart<32>& part, const GroupFits& fits, float last,
                                   std::uint8_t* scales, std::uint8_t* minima,
                                   TileCodes<32>* codes) {
  Lanes inverse;
  InvertSteps(fits.d.At(part.first), &inverse);
  Lanes nearest = fits.scale.At(part.first) * inverse;
  RoundBetween(&nearest, 0.0F, kLastSixBits);
  StoredFit best{Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
  for (const float by : kOffsetSteps) {
    Lanes step = nearest + by;
    RoundBetween(&step, 0.0F, kLastSixBits);
    TryStored(part, fits, step, last, &best);
  }
  Lanes chosen[32];
  InvertSteps(fits.d.At(part.first) * best.scale, &inverse);
  NearestCodes<32>(part, 0.0F - fits.dmin.At(part.first) * best.minimum, inverse, 0.0F, last,
                   chosen);
  codes->Set(part.first, chosen, 0.0F);
  for (int lane = 0; lane < kWidth; ++lane) {
    scales[part.first + lane] = static_cast<std::uint8_t>(best.scale[lane]);
    minima[part.first + lane] = static_cast<std::uint8_t>(best.minimum[lane]);
  }
}

/// Eight 6-bit scales and minima in twelve bytes.
inline void WriteSixBits(const std::uint8_t* scales, const std::uint8_t* minima,
                         std::uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    out[i] = static_cast<std::uint8_t>(scales[i] | (scales[4 + i] >> 4 << 6));
    out[4 + i] = static_cast<std::uint8_t>(minima[i] | (minima[4 + i] >> 4 << 6));
    out[8 + i] = static_cast<std::uint8_t>((scales[4 + i] & 15) | (minima[4 + i] << 4));
  }
}

/// The codes of eight groups: fifth bits in 32 bytes, where there are any, and pairs of nibbles.
template <int kBits>
inline void WriteKCodes(const std::uint8_t (*codes)[32], std::uint8_t* out) {
  if constexpr (kBits == 5) {
    std::memset(out, 0, 32);
    for (int group = 0; group < 8; ++group) {
      for (int i = 0; i < 32; ++i) {
        out[i] = static_cast<std::uint8_t>(out[i] | (codes[group][i] >> 4 << group));
      }
    }
    out += 32;
  }
  for (int group = 0; group < 8; group += 2, out += 32) {
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<std::uint8_t>((codes[group][i] & 15) | (codes[group + 1][i] << 4));
    }
  }
}

/// Q4_K and Q5_K: up to two blocks, of eight groups each.
template <int kBits>
inline bool EncodeOffsetK(const float* x, const float* weights, int count, std::uint8_t* out) {
  constexpr auto kLast = static_cast<float>((1 << kBits) - 1);
  constexpr int kBytes = kBits == 4 ? 144 : 176;
  GroupTile<32> tile;
  GroupFits fits;
  if (!tile.Load<8>(x, weights, 8 * count, kLastSixBits * kMaxHalf)) return false;
  for (int first = 0; first < kGroups; first += kWidth) {
    GroupSums sums;
    Fit fit;
    FitOffset<32, true>({&tile, first}, kLast, &sums, &fit);
    fits.scale.Set(first, fit.scale);
    fits.base.Set(first, fit.base);
    fits.sum_weights.Set(first, sums.weights);
    fits.sum_numbers.Set(first, sums.numbers);
  }
  fits.ShareUnits(tile.ranges);
  std::uint8_t scales[kGroups];
  std::uint8_t minima[kGroups];
  TileCodes<32> codes;
  for (int first = 0; first < kGroups; first += kWidth) {
    StoreOffsetPart({&tile, first}, fits, kLast, scales, minima, &codes);
  }
  for (int block = 0; block < count; ++block, out += kBytes) {
    std::memcpy(out, fits.d_half + block, 2);
    std::memcpy(out + 2, fits.dmin_half + block, 2);
    WriteSixBits(scales + 8 * block, minima + 8 * block, out + 4);
    WriteKCodes<kBits>(codes.codes + 8 * block, out + 16);
  }
  return true;
}

/// The sixteen scales of a Q6_K block in units of its d, and its codes.
ENCODE_INLINE void StoreSignedPart(const GroupPart<16>& part, const GroupValues& scales, float d,
                                   std::uint8_t* stored, TileCodes<16>* codes) {
  Lanes inverse;
  const Lanes unit = Lanes{} + d;
  InvertSteps(unit, &inverse);
  Lanes nearest = scales.At(part.first) * inverse;
  RoundBetween(&nearest, -128.0F, 127.0F);
  Lanes chosen[16];
  StoredFit best{Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
  for (const float by : kSignedSteps) {
    Lanes step = nearest + by;
    RoundBetween(&step, -128.0F, 127.0F);
    Fit fit;
    fit.scale = unit * step;
    fit.base = Lanes{};
    InvertSteps(fit.scale, &inverse);
    NearestCodes<16>(part, Lanes{}, inverse, -32.0F, 31.0F, chosen);
    FindError<16>(part, chosen, &fit);
    best.Keep(step, fit.base, fit);
  }
  InvertSteps(unit * best.scale, &inverse);
  NearestCodes<16>(part, Lanes{}, inverse, -32.0F, 31.0F, chosen);
  codes->Set(part.first, chosen, 32.0F);
  for (int lane = 0; lane < kWidth; ++lane) {
    stored[part.first + lane] =
        static_cast<std::uint8_t>(static_cast<std::int32_t>(best.scale[lane]));
  }
}

/// 256 codes of 6 bits: nibbles in 128 bytes, the bits above them in 64.
inline void WriteSixBitCodes(const std::uint8_t* codes, std::uint8_t* out) {
  std::uint8_t* high = out + 128;
  for (int half = 0; half < 2; ++half, codes += 128, out += 64, high += 32) {
    for (int i = 0; i < 32; ++i) {
      const std::uint8_t* c = codes + i;
      out[i] = static_cast<std::uint8_t>((c[0] & 15) | (c[64] << 4));
      out[32 + i] = static_cast<std::uint8_t>((c[32] & 15) | (c[96] << 4));
      high[i] = static_cast<std::uint8_t>((c[0] >> 4) | (c[32] >> 4 << 2) | (c[64] >> 4 << 4) |
                                          (c[96] >> 4 << 6));
    }
  }
}

inline bool EncodeQ6_K(const float* x, const float* weights, int count, std::uint8_t* out) {
  GroupTile<16> tile;
  if (!tile.Load<16>(x, weights, kGroups * count, 127 * 31 * kMaxHalf)) return false;
  GroupValues scales;
  for (int first = 0; first < kGroups; first += kWidth) {
    Fit fit;
    FitSigned<16>({&tile, first}, -32.0F, 31.0F, &fit);
    scales.Set(first, fit.scale);
  }
  float largest = 0.0F;
  for (const float scale : scales.values) {
    largest = __builtin_fabsf(scale) > __builtin_fabsf(largest) ? scale : largest;
  }
  const StoredScale unit = RoundScale(0.0F - largest / 128.0F, tile.ranges[0]);
  TileCodes<16> codes;
  for (int first = 0; first < kGroups; first += kWidth) {
    StoreSignedPart({&tile, first}, scales, unit.value, out + 192, &codes);
  }
  WriteSixBitCodes(codes.codes[0], out);
  std::memcpy(out + 208, &unit.half, 2);
  return true;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
