// Sixteen groups of weights side by side, for searches of their scales: a lane is a group. Sums run
// over the numbers of a group one after the other, so that every instruction set, and numpy
// (quant/formats/_search.py), adds in the same order.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/isa/shared/lanes-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kGroups = 16;

/// Numbers below this have no scale as a half.
constexpr float kTinyNumber = 0x1p-60F;

/// A power of two, and its inverse, with which numbers are below 2; 0 where all are tiny.
struct Range {
  float unit, inverse;
};

inline Range RangeOf(float largest) {
  if (largest < kTinyNumber) return {0.0F, 0.0F};
  const std::uint32_t field = std::bit_cast<std::uint32_t>(largest) >> 23;
  return {std::bit_cast<float>(field << 23), std::bit_cast<float>((254 - field) << 23)};
}

/// kSize numbers of each group in units of its range, and their weights: of all groups the first,
/// then of all groups the second.
template <int kSize>
struct GroupTile {
  alignas(64) float x[kSize][kGroups];
  alignas(64) float weights[kSize][kGroups];
  Range ranges[kGroups];

  /// Reads up to kGroups groups, of which every kShared have one range; the rest are zeros.
  /// weights may be null. False if a number is beyond the limit or not finite.
  template <int kShared>
  bool Load(const float* numbers, const float* importances, int count, float limit) {
    for (int group = 0; group < kGroups; group += kShared) {
      float largest = 0.0F;
      for (int at = group * kSize; at < (group + kShared) * kSize && group < count; at += 32) {
        float own;
        if (!LargestWithin(numbers + at, limit, &own)) return false;
        largest = own > largest ? own : largest;
      }
      for (int i = 0; i < kShared; ++i) ranges[group + i] = RangeOf(largest);
    }
    for (int group = 0; group < kGroups; ++group) {
      const bool is_used = group < count;
      for (int i = 0; i < kSize; ++i) {
        const int at = group * kSize + i;
        x[i][group] = is_used ? numbers[at] * ranges[group].inverse : 0.0F;
        weights[i][group] = is_used && importances != nullptr ? importances[at] : 1.0F;
      }
    }
    return true;
  }
};

/// A number of each group.
struct GroupValues {
  alignas(64) float values[kGroups];

  ENCODE_INLINE const UnalignedLanes& At(int first) const { return LanesAt(values + first); }
  ENCODE_INLINE void Set(int first, const Lanes& lanes) {
    std::memcpy(values + first, &lanes, sizeof lanes);
  }
};

/// A scale as the half that is stored, and what that is worth in units of the range.
struct StoredScale {
  std::uint16_t half;
  float value;
};

inline StoredScale RoundScale(float scale, const Range& range) {
  float whole = scale * range.unit;
  whole = whole > kMaxHalf ? kMaxHalf : whole;
  whole = whole < -kMaxHalf ? -kMaxHalf : whole;
  const std::uint16_t half = F32ToF16(whole);
  return {half, F16ToF32(half) * range.inverse};
}

/// kWidth groups of a tile.
template <int kSize>
struct GroupPart {
  const GroupTile<kSize>* tile;
  int first;

  ENCODE_INLINE const UnalignedLanes& X(int i) const { return LanesAt(tile->x[i] + first); }
  ENCODE_INLINE const UnalignedLanes& W(int i) const { return LanesAt(tile->weights[i] + first); }
};

/// Codes of all groups, group by group.
template <int kSize>
struct TileCodes {
  std::uint8_t codes[kGroups][kSize];

  /// Keeps the codes of kWidth groups, plus an offset that makes them positive.
  ENCODE_INLINE void Set(int first, const Lanes* lanes, float offset) {
    for (int i = 0; i < kSize; ++i) {
      const IntLanes whole = __builtin_convertvector(lanes[i] + offset, IntLanes);
      for (int lane = 0; lane < kWidth; ++lane) {
        codes[first + lane][i] = static_cast<std::uint8_t>(whole[lane]);
      }
    }
  }
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
