// y of several tokens += factor * row: rows of neurons that many tokens share.
//
// A stretch of a few rows is unpacked once, for all tokens; each token's sums then stay in
// registers over all its rows. Every sum is the chain of multiply-adds that the rows make one by
// one (AxpySink), so the bits are the same. Bound by the multiply-adds.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/decode-inl.h"
#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kStretch = 256;  ///< columns that are unpacked at a time
constexpr std::int64_t kMaxStretchScales = 16;
/// Sums in registers: half of the registers of AVX-512; elsewhere as many as leave room for the
/// rest.
constexpr int kSumVectors = kLanes >= 16 ? 16 : 8;

/// Columns of a few rows as floats. Weight c of row r is values[r][c] times the scale of c, or the
/// value alone if there are no scales.
struct UnpackedRows {
  alignas(64) float values[kMaxGroupRows][kStretch];
  alignas(64) float scales[kMaxGroupRows][kMaxStretchScales];
};

/// Float formats: values are weights.
template <class Weights>
struct FloatStretch {
  static constexpr std::int64_t kScaleWidth = 0;
  static constexpr std::int64_t kBytes = kStretch * Weights::kBytes;
  static void Unpack(const std::uint8_t* row, std::int64_t at, std::int64_t columns,
                     UnpackedRows& out, std::int64_t r) {
    const std::int64_t count = columns - at < kStretch ? columns - at : kStretch;
    DecodeFloatRow<Weights>(row + at * Weights::kBytes, count, StoreSink{out.values[r]});
  }
};

/// Block formats: values are integers, unless a minimum or a wide scale makes them weights.
template <class Group>
struct BlockStretch {
  static constexpr bool kHasScales = !Decoder<Group>::kHasMinima && !kHasWideScales<Group>;
  /// Columns of a scale; 0: there are none.
  static constexpr std::int64_t kScaleWidth = !kHasScales ? 0 : Decoder<Group>::kScaleWidth;
  static constexpr std::int64_t kBytes = kGroupBytes<Group>;
  static void Unpack(const std::uint8_t* row, std::int64_t at, std::int64_t columns,
                     UnpackedRows& out, std::int64_t r) {
    DecodedGroup group;
    const std::int64_t count = DecodeGroupAt<Group>(row, at, columns, group);
    float* values = out.values[r];
    if constexpr (!kHasScales) {
      PutGroup<Group>(group, count, 0, StoreSink{values});
    } else {
      for (std::int64_t i = 0; i < count; i += kLanes) Store(values + i, LoadI8(group.values + i));
      std::memcpy(out.scales[r], group.scales, sizeof group.scales);
    }
  }
};

/// Superblocks with four-bit codes become floats in registers where NibbleRows does that.
template <class Superblock>
struct SuperblockStretch {
  using Blocks = BlockStretch<SuperblockGroup<Superblock>>;
  static constexpr std::int64_t kScaleWidth = Blocks::kScaleWidth;
  static constexpr std::int64_t kBytes = Superblock::kBytes;
  static void Unpack(const std::uint8_t* row, std::int64_t at, std::int64_t columns,
                     UnpackedRows& out, std::int64_t r) {
    if constexpr (kHasNibbleRows<Superblock>) {
      const WholeGroup<SuperblockGroup<Superblock>> whole(row, at, columns);
      NibbleRows<Superblock>::Unpack(whole.data, out.values[r], out.scales[r]);
    } else {
      Blocks::Unpack(row, at, columns, out, r);
    }
  }
};

/// A token's rows and the products of its factors with a stretch's scales, kWidth columns each; 0:
/// no scales.
template <std::int64_t kWidth>
class ScaledTerms {
 public:
  ScaledTerms(const UnpackedRows& rows, const GroupTerms& terms) : rows_(rows), terms_(terms) {
    if constexpr (kWidth > 0) {
      for (std::int64_t i = 0; i < terms.count; ++i) {
        const VecF factor = Broadcast(terms.factors[i]);
        const float* scales = rows.scales[terms.places[i]];
        for (std::int64_t s = 0; s < kScales; s += kLanes) {
          Store(factors_[i] + s, Mul(Load(scales + s), factor));
        }
      }
    }
  }

  /// y[0...] += columns from `column` on of all terms, in kVectors whole vectors.
  template <int kVectors>
  [[gnu::always_inline]] void Add(std::int64_t column, float* y) const {
    constexpr int kOfScale =
        kWidth > kLanes && kWidth / kLanes <= kVectors ? static_cast<int>(kWidth / kLanes) : 1;
    VecF sums[kVectors];
#pragma GCC unroll 16
    for (int u = 0; u < kVectors; ++u) sums[u] = Load(y + u * kLanes);
    for (std::int64_t i = 0; i < terms_.count; ++i) {
      const float* values = rows_.values[terms_.places[i]] + column;
#pragma GCC unroll 16
      for (int first = 0; first < kVectors; first += kOfScale) {
        const VecF factor = Factor(i, column + first * kLanes);
#pragma GCC unroll 16
        for (int u = first; u < first + kOfScale; ++u) {
          sums[u] = Fma(Load(values + u * kLanes), factor, sums[u]);
        }
      }
    }
#pragma GCC unroll 16
    for (int u = 0; u < kVectors; ++u) Store(y + u * kLanes, sums[u]);
  }

 private:
  /// Scales of a stretch, and their number rounded up to whole vectors.
  static constexpr std::int64_t kScales = kWidth > 0 ? kStretch / kWidth : 1;
  static constexpr std::int64_t kRoom = kScales < kLanes ? kLanes : kScales;

  [[gnu::always_inline]] VecF Factor(std::int64_t i, std::int64_t column) const {
    if constexpr (kWidth > 0) return Broadcast(factors_[i][column / kWidth]);
    return Broadcast(terms_.factors[i]);
  }

  const UnpackedRows& rows_;
  const GroupTerms& terms_;
  alignas(64) float factors_[kWidth > 0 ? kMaxGroupRows : 1][kRoom];
};

template <std::int64_t kWidth>
void AddStretch(const UnpackedRows& rows, const GroupTerms& terms, std::int64_t at,
                std::int64_t count) {
  const ScaledTerms<kWidth> scaled(rows, terms);
  float* y = terms.y + at;
  std::int64_t column = 0;
  for (; column + kSumVectors * kLanes <= count; column += kSumVectors * kLanes) {
    scaled.template Add<kSumVectors>(column, y + column);
  }
  for (; column + kLanes <= count; column += kLanes) {
    scaled.template Add<1>(column, y + column);
  }
  if (column == count) return;
  float tail[kLanes] = {};
  const auto bytes = static_cast<std::size_t>(count - column) * sizeof(float);
  std::memcpy(tail, y + column, bytes);
  scaled.template Add<1>(column, tail);
  std::memcpy(y + column, tail, bytes);
}

template <class Stretch>
void AddRowGroup(const RowGroup& group, std::int64_t columns, const GroupTerms* terms,
                 std::int64_t num_terms) {
  UnpackedRows rows;
  // A padded tail multiplies bytes that were never written.
  if (columns % kLanes != 0) std::memset(&rows, 0, sizeof rows);
  std::int64_t bytes = 0;
  for (std::int64_t at = 0; at < columns; at += kStretch, bytes += Stretch::kBytes) {
    for (std::int64_t r = 0; r < group.num_next; ++r) {
      for (std::int64_t i = 0; i < Stretch::kBytes; i += 64) {
        __builtin_prefetch(group.next[r] + bytes + i, 0, 2);
      }
    }
    for (std::int64_t r = 0; r < group.num_rows; ++r) {
      Stretch::Unpack(group.rows[r], at, columns, rows, r);
    }
    const std::int64_t count = columns - at < kStretch ? columns - at : kStretch;
    for (std::int64_t t = 0; t < num_terms; ++t) {
      AddStretch<Stretch::kScaleWidth>(rows, terms[t], at, count);
    }
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
