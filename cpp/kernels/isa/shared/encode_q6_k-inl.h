// The encoder of Q6_K.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/encode_k-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// The stored scales that are tried, as distances from the one found.
constexpr float kSignedSteps[] = {-2.0F, -1.0F, 0.0F, 1.0F, 2.0F};

/// A Q6_K block as it will be stored, and weighted sums of the squares of codes and of their
/// products with numbers.
struct StoredSigned {
  StoredScale d;
  GroupValues scale, error, squares, products;
  TileCodes<16> codes;

  double Error() const {
    double sum = 0.0;
    for (const float own : error.values) sum += static_cast<double>(own);
    return sum;
  }

  /// The unit that fits codes and scales best.
  float FittedUnit() const {
    double squares_sum = 0.0, products_sum = 0.0;
    for (int i = 0; i < kGroups; ++i) {
      const double own = scale.values[i];
      squares_sum += own * own * static_cast<double>(squares.values[i]);
      products_sum += own * static_cast<double>(products.values[i]);
    }
    return squares_sum > 0.0 ? static_cast<float>(products_sum / squares_sum) : 0.0F;
  }
};

/// Scales in units of stored->d, and codes.
ENCODE_INLINE void StoreSignedPart(const GroupPart<16>& part, const GroupValues& scales,
                                   StoredSigned* stored) {
  Lanes inverse;
  const Lanes unit = Lanes{} + stored->d.value;
  InvertSteps(unit, &inverse);
  Lanes nearest = scales.At(part.first) * inverse;
  RoundBetween(&nearest, -128.0F, 127.0F);
  Lanes codes[16];
  StoredFit best{Lanes{}, Lanes{}, Lanes{} + kLargestFloat};
  for (const float by : kSignedSteps) {
    Lanes step = nearest + by;
    RoundBetween(&step, -128.0F, 127.0F);
    Fit fit;
    fit.scale = unit * step;
    fit.base = Lanes{};
    InvertSteps(fit.scale, &inverse);
    NearestCodes<16>(part, Lanes{}, inverse, -32.0F, 31.0F, codes);
    FindError<16>(part, codes, &fit);
    best.Keep(step, fit.base, fit);
  }
  InvertSteps(unit * best.scale, &inverse);
  NearestCodes<16>(part, Lanes{}, inverse, -32.0F, 31.0F, codes);
  Lanes squares{}, products{};
  for (int i = 0; i < 16; ++i) {
    const Lanes weighted = part.W(i) * codes[i];
    squares += weighted * codes[i];
    products += weighted * part.X(i);
  }
  stored->codes.Set(part.first, codes, 32.0F);
  stored->scale.Set(part.first, best.scale);
  stored->error.Set(part.first, best.error);
  stored->squares.Set(part.first, squares);
  stored->products.Set(part.first, products);
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

/// The largest scale is -128 units, at first.
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
  StoredSigned stored[1 + kUnitFits];
  const StoredSigned* best = stored;
  float unit = 0.0F - largest / 128.0F;
  for (StoredSigned& own : stored) {
    own.d = RoundScale(unit, tile.ranges[0]);
    for (int first = 0; first < kGroups; first += kWidth) {
      StoreSignedPart({&tile, first}, scales, &own);
    }
    if (own.Error() < best->Error()) best = &own;
    unit = own.FittedUnit();
  }
  WriteSixBitCodes(best->codes.codes[0], out);
  for (int i = 0; i < kGroups; ++i) {
    out[192 + i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(best->scale.values[i]));
  }
  std::memcpy(out + 208, &best->d.half, 2);
  return true;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
