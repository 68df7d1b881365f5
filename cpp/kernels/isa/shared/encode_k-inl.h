// Encoders of Q4_K and Q5_K: groups whose scales are multiples of one that 256 weights share.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/encode_search-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr float kLastSixBits = 63.0F;
/// The stored scales that are tried, as distances from the one found.
constexpr float kOffsetSteps[] = {-1.0F, 0.0F, 1.0F};

/// Times that units are fitted to codes.
constexpr int kUnitFits = 2;
constexpr double kLeastSpread = 1e-9;

/// The stored values of groups, in units of d and dmin, and their error.
struct StoredFit {
  Lanes scale, minimum, error;

  ENCODE_INLINE void Keep(const Lanes& own_scale, const Lanes& own_minimum, const Fit& fit) {
    const IntLanes is_better = fit.error < error;
    scale = is_better ? own_scale : scale;
    minimum = is_better ? own_minimum : minimum;
    error = is_better ? fit.error : error;
  }
};

/// Fits of sixteen groups whose scales and bases are not rounded yet, and sums over the groups.
struct GroupFits {
  GroupValues scale, base, sum_weights, sum_numbers;
};

/// Two blocks of eight groups as they will be stored, their errors, and weighted sums of codes, of
/// their squares and of their products with numbers.
struct StoredBlocks {
  StoredScale d[2], dmin[2];
  GroupValues d_of_group, dmin_of_group;
  GroupValues scale, minimum, error, sum, squares, products;
  TileCodes<32> codes;

  void SetUnits(int block, float unit, float minimum_unit, const Range* ranges) {
    d[block] = RoundScale(unit, ranges[8 * block]);
    dmin[block] = RoundScale(minimum_unit, ranges[8 * block]);
    for (int i = 8 * block; i < 8 * block + 8; ++i) {
      d_of_group.values[i] = d[block].value;
      dmin_of_group.values[i] = dmin[block].value;
    }
  }

  double Error(int block) const {
    double sum_of_errors = 0.0;
    for (int i = 8 * block; i < 8 * block + 8; ++i) {
      sum_of_errors += static_cast<double>(error.values[i]);
    }
    return sum_of_errors;
  }
};

/// The largest scale and the lowest base of a block are 63 units.
inline void ShareUnits(const GroupFits& fits, const Range* ranges, StoredBlocks* stored) {
  for (int block = 0; block < 2; ++block) {
    float largest = 0.0F;
    float lowest = 0.0F;
    for (int i = 8 * block; i < 8 * block + 8; ++i) {
      largest = fits.scale.values[i] > largest ? fits.scale.values[i] : largest;
      lowest = fits.base.values[i] < lowest ? fits.base.values[i] : lowest;
    }
    stored->SetUnits(block, largest / kLastSixBits, (0.0F - lowest) / kLastSixBits, ranges);
  }
}

/// The units that fit a block's codes, scales and minima best.
inline void FitUnits(const StoredBlocks& from, const GroupFits& fits, const Range* ranges,
                     StoredBlocks* stored) {
  for (int block = 0; block < 2; ++block) {
    // Number = d u - dmin v: sums of u u, u v, v v, u x and v x.
    double uu = 0.0, uv = 0.0, vv = 0.0, ux = 0.0, vx = 0.0;
    for (int i = 8 * block; i < 8 * block + 8; ++i) {
      const double scale = from.scale.values[i];
      const double minimum = from.minimum.values[i];
      uu += scale * scale * static_cast<double>(from.squares.values[i]);
      uv += scale * minimum * static_cast<double>(from.sum.values[i]);
      vv += minimum * minimum * static_cast<double>(fits.sum_weights.values[i]);
      ux += scale * static_cast<double>(from.products.values[i]);
      vx += minimum * static_cast<double>(fits.sum_numbers.values[i]);
    }
    const double spread = uu * vv - uv * uv;
    const bool is_spread = spread > kLeastSpread * uu * vv;
    const double d = is_spread ? (ux * vv - vx * uv) / spread : uu > 0.0 ? ux / uu : 0.0;
    const double dmin = is_spread ? (ux * uv - vx * uu) / spread : 0.0;
    stored->SetUnits(block, d > 0.0 ? static_cast<float>(d) : 0.0F,
                     dmin > 0.0 ? static_cast<float>(dmin) : 0.0F, ranges);
  }
}

/// For a stored scale: the stored minimum that fits its codes, codes again, and their error.
ENCODE_INLINE void TryStored(const GroupPart<32>& part, const GroupFits& fits,
                             const StoredBlocks& stored, const Lanes& step, float last,
                             StoredFit* best) {
  Lanes codes[32];
  Lanes inverse;
  Lanes inverse_dmin;
  Lanes sum{};
  Fit fit;
  fit.scale = stored.d_of_group.At(part.first) * step;
  InvertSteps(fit.scale, &inverse);
  InvertSteps(stored.dmin_of_group.At(part.first), &inverse_dmin);
  NearestCodes<32>(part, fits.base.At(part.first), inverse, 0.0F, last, codes);
  for (int i = 0; i < 32; ++i) sum += part.W(i) * codes[i];
  const Lanes above = fit.scale * sum - fits.sum_numbers.At(part.first);
  Lanes minimum = above / fits.sum_weights.At(part.first) * inverse_dmin;
  RoundBetween(&minimum, 0.0F, kLastSixBits);
  fit.base = 0.0F - stored.dmin_of_group.At(part.first) * minimum;
  NearestCodes<32>(part, fit.base, inverse, 0.0F, last, codes);
  FindError<32>(part, codes, &fit);
  best->Keep(step, minimum, fit);
}

/// The codes of the best fit, and sums of them.
ENCODE_INLINE void TakeCodes(const GroupPart<32>& part, const StoredFit& best, float last,
                             StoredBlocks* stored) {
  Lanes codes[32];
  Lanes inverse;
  Lanes sum{}, squares{}, products{};
  InvertSteps(stored->d_of_group.At(part.first) * best.scale, &inverse);
  NearestCodes<32>(part, 0.0F - stored->dmin_of_group.At(part.first) * best.minimum, inverse, 0.0F,
                   last, codes);
  for (int i = 0; i < 32; ++i) {
    const Lanes weighted = part.W(i) * codes[i];
    sum += weighted;
    squares += weighted * codes[i];
    products += weighted * part.X(i);
  }
  stored->codes.Set(part.first, codes, 0.0F);
  stored->sum.Set(part.first, sum);
  stored->squares.Set(part.first, squares);
  stored->products.Set(part.first, products);
}

/// Scales, minima and codes of all groups for the units in `stored`.
inline void StoreGroups(const GroupTile<32>& tile, const GroupFits& fits, float last,
                        StoredBlocks* stored) {
  for (int first = 0; first < kGroups; first += kWidth) {
    const GroupPart<32> part{&tile, first};
    Lanes inverse;
    InvertSteps(stored->d_of_group.At(first), &inverse);
    Lanes nearest = fits.scale.At(first) * inverse;
    RoundBetween(&nearest, 0.0F, kLastSixBits);
    StoredFit best{Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
    for (const float by : kOffsetSteps) {
      Lanes step = nearest + by;
      RoundBetween(&step, 0.0F, kLastSixBits);
      TryStored(part, fits, *stored, step, last, &best);
    }
    TakeCodes(part, best, last, stored);
    stored->scale.Set(first, best.scale);
    stored->minimum.Set(first, best.minimum);
    stored->error.Set(first, best.error);
  }
}

/// Eight 6-bit scales and minima in twelve bytes.
inline void WriteSixBits(const float* scales, const float* minima, std::uint8_t* out) {
  for (int i = 0; i < 4; ++i) {
    const auto low_scale = static_cast<std::uint32_t>(scales[i]);
    const auto scale = static_cast<std::uint32_t>(scales[4 + i]);
    const auto low_minimum = static_cast<std::uint32_t>(minima[i]);
    const auto minimum = static_cast<std::uint32_t>(minima[4 + i]);
    out[i] = static_cast<std::uint8_t>(low_scale | (scale >> 4 << 6));
    out[4 + i] = static_cast<std::uint8_t>(low_minimum | (minimum >> 4 << 6));
    out[8 + i] = static_cast<std::uint8_t>((scale & 15) | (minimum << 4));
  }
}

/// The codes of eight groups: fifth bits in 32 bytes, if there are any, and pairs of nibbles.
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

inline void FitGroups(const GroupTile<32>& tile, float last, GroupFits* fits) {
  for (int first = 0; first < kGroups; first += kWidth) {
    GroupSums sums;
    Fit fit;
    FitOffset<32, true>({&tile, first}, last, &sums, &fit);
    fits->scale.Set(first, fit.scale);
    fits->base.Set(first, fit.base);
    fits->sum_weights.Set(first, sums.weights);
    fits->sum_numbers.Set(first, sums.numbers);
  }
}

/// Q4_K and Q5_K: up to two blocks, of eight groups each. Units are fitted to the codes and codes
/// chosen again, and a block keeps the best.
template <int kBits>
inline bool EncodeOffsetK(const float* x, const float* weights, int count, std::uint8_t* out) {
  constexpr auto kLast = static_cast<float>((1 << kBits) - 1);
  constexpr int kBytes = kBits == 4 ? 144 : 176;
  GroupTile<32> tile;
  GroupFits fits;
  if (!tile.Load<8>(x, weights, 8 * count, kLastSixBits * kMaxHalf)) return false;
  FitGroups(tile, kLast, &fits);
  StoredBlocks stored[1 + kUnitFits];
  ShareUnits(fits, tile.ranges, stored);
  StoreGroups(tile, fits, kLast, stored);
  for (int i = 0; i < kUnitFits; ++i) {
    FitUnits(stored[i], fits, tile.ranges, stored + i + 1);
    StoreGroups(tile, fits, kLast, stored + i + 1);
  }
  for (int block = 0; block < count; ++block, out += kBytes) {
    const StoredBlocks* best = stored;
    for (const StoredBlocks& other : stored) {
      if (other.Error(block) < best->Error(block)) best = &other;
    }
    std::memcpy(out, &best->d[block].half, 2);
    std::memcpy(out + 2, &best->dmin[block].half, 2);
    WriteSixBits(best->scale.values + 8 * block, best->minimum.values + 8 * block, out + 4);
    WriteKCodes<kBits>(best->codes.codes + 8 * block, out + 16);
  }
  return true;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
