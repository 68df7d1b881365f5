// Rows to f32, and y += scale * row (the transposed down projection), for every format.
//
// Blocks are unpacked to int8 in a small buffer, then converted lane by lane; products of a
// scale (f16, or a power of two) and a small integer are exact in f32, so the weights equal the
// reference decode bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_float-inl.h"
#include "kernels/isa/shared/superblocks-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Destinations of decoded weights: written out, or added to y with a factor. PutScaled takes the
/// weight as value * scale, `scale` being a result of Scaled.
struct StoreSink {
  float* out;
  VecF Scaled(float scale) const { return Broadcast(scale); }
  void Put(std::int64_t at, VecF weight) const { Store(out + at, weight); }
  void PutScaled(std::int64_t at, VecF value, VecF scale) const {
    Store(out + at, Mul(value, scale));
  }
};
struct AxpySink {
  float* out;
  VecF factor;
  VecF Scaled(float scale) const { return Mul(Broadcast(scale), factor); }
  void Put(std::int64_t at, VecF weight) const {
    Store(out + at, Fma(weight, factor, Load(out + at)));
  }
  void PutScaled(std::int64_t at, VecF value, VecF scale) const {
    Store(out + at, Fma(value, scale, Load(out + at)));
  }
};

/// 256 decoded integers with their scales and minima, each valid for 256 / num_scales weights.
struct DecodedGroup {
  std::int8_t values[256];
  float scales[16];
  float minima[8];
};

/// Decodes a group of 256 weights to integers and scales. kScaleWidth weights share a scale.
template <class Group>
struct Decoder {
  static constexpr bool kHasMinima = Group::kHasMinima;
  static constexpr int kScaleWidth = 32;
  static void Decode(const std::uint8_t* data, DecodedGroup& group) {
    for (int i = 0; i < 4; ++i) {
      StorePair(group.values + 64 * i, Group::LoadPair(data, i), Group::kOffset);
    }
    Store8(group.scales, Group::Scales(data));
    if constexpr (Group::kHasMinima) Store8(group.minima, Group::Minima(data));
  }
};

template <>
struct Decoder<Q6_KGroup> {
  static constexpr bool kHasMinima = false;
  static constexpr int kScaleWidth = 16;
  static void Decode(const std::uint8_t* data, DecodedGroup& group) {
    for (int i = 0; i < 4; ++i) {
      StorePair(group.values + 64 * i, Q6_KGroup::LoadPair(data, i), Q6_KGroup::kOffset);
    }
    const float scale = ScalarF16(data + Q6_KGroup::kScaleAt);
    for (int i = 0; i < 16; ++i) {
      const auto factor = static_cast<std::int8_t>(data[Q6_KGroup::kScalesAt + i]);
      group.scales[i] = scale * static_cast<float>(factor);
    }
  }
};

template <class Superblock>
struct SuperblockGroup {
  static constexpr std::int64_t kBlockWeights = kSuperblockWeights;
  static constexpr std::int64_t kBlockBytes = Superblock::kBytes;
};

/// Offsets with a half (lowbit formats) become whole by doubling the codes and halving the scale.
template <class Superblock>
struct Decoder<SuperblockGroup<Superblock>> {
  static constexpr bool kHasMinima = Superblock::kHasMinima;
  static constexpr int kScaleWidth = 32 / Superblock::kParts;
  static void Decode(const std::uint8_t* data, DecodedGroup& group) {
    std::int8_t vectors[256];
    DecodeVectors(data, vectors);
    TransposeWords(vectors, group.values);
    DecodeScales(data, group);
  }
  /// The integers in the order of the superblock.
  static void DecodeVectors(const std::uint8_t* data, std::int8_t* vectors) {
    StoreCodes(vectors, Superblock::Load(data), kWhole);
    if constexpr (kIsDoubled) {
      for (int i = 0; i < 256; ++i) vectors[i] = static_cast<std::int8_t>(2 * vectors[i] - 1);
    }
  }
  static void DecodeScales(const std::uint8_t* data, DecodedGroup& group) {
    for (int part = 0; part < Superblock::kParts; ++part) {
      float scales[8];
      const Scale8 stored = Superblock::Scales(data, part);
      Store8(scales, kIsDoubled ? Mul8(stored, Broadcast8(0.5F)) : stored);
      for (int j = 0; j < 8; ++j) group.scales[Superblock::kParts * j + part] = scales[j];
    }
    if constexpr (kHasMinima) Store8(group.minima, Superblock::Minima(data));
  }

 private:
  static constexpr auto kWhole = static_cast<std::int32_t>(Superblock::kOffset);
  static constexpr bool kIsDoubled = Superblock::kOffset != static_cast<float>(kWhole);
};

struct SignGroup {
  static constexpr std::int64_t kBlockWeights = kSuperblockWeights;
  static constexpr std::int64_t kBlockBytes = kSignBytes;
};

template <>
struct Decoder<SignGroup> {
  static constexpr bool kHasMinima = false;
  static constexpr int kScaleWidth = 256;
  static void Decode(const std::uint8_t* data, DecodedGroup& group) {
    for (int i = 0; i < 32; ++i) {
      // Byte k keeps bit k, becomes 0 or 1, and then 1 or -1.
      const std::uint64_t kept = (data[i] * 0x0101010101010101ULL) & 0x8040201008040201ULL;
      const std::uint64_t bits = ((kept + 0x7F7F7F7F7F7F7F7FULL) >> 7) & 0x0101010101010101ULL;
      const std::uint64_t signs = (bits * 0xFE) ^ 0x0101010101010101ULL;
      std::memcpy(group.values + 8 * i, &signs, sizeof signs);
    }
    group.scales[0] = ScalarF16(data + kSignScaleAt);
  }
};

/// A group of 256 weights as it lies in a row, or a copy with zeros after the row's last blocks.
template <class Group>
struct WholeGroup {
  const std::uint8_t* data;

  WholeGroup(const std::uint8_t* row, std::int64_t at, std::int64_t columns)
      : data(row + at / Group::kBlockWeights * Group::kBlockBytes) {
    if (columns - at >= 256) return;
    std::memset(padded_, 0, sizeof padded_);
    std::memcpy(padded_, data, static_cast<std::size_t>((columns - at) / 32 * Group::kBlockBytes));
    data = padded_;
  }

 private:
  std::uint8_t padded_[kGroupBytes<Group>];
};
template <class Superblock>
struct WholeGroup<SuperblockGroup<Superblock>> {
  const std::uint8_t* data;

  WholeGroup(const std::uint8_t* row, std::int64_t at, std::int64_t columns)
      : data(row + at / kSuperblockWeights * Superblock::kBytes) {
    if (columns - at < 256) data = TailSuperblock<Superblock>(columns).Widen(data, room_);
  }

 private:
  typename TailSuperblock<Superblock>::Room room_;
};

/// Decodes the group at weight `at` of a row and returns the number of weights the row has in it.
template <class Group>
inline std::int64_t DecodeGroupAt(const std::uint8_t* row, std::int64_t at, std::int64_t columns,
                                  DecodedGroup& group) {
  const WholeGroup<Group> whole(row, at, columns);
  Decoder<Group>::Decode(whole.data, group);
  // Keeps the group in memory: taking vectors apart in registers costs more than reading back.
  __asm__ volatile("" : : "r"(&group) : "memory");
  return columns - at < 256 ? columns - at : 256;
}

/// Puts `count` weights (a multiple of the scale's width) of a decoded group at `at`.
template <class Group, class Sink>
inline void PutGroup(const DecodedGroup& group, std::int64_t count, std::int64_t at, Sink sink) {
  constexpr std::int64_t kScaleWidth = Decoder<Group>::kScaleWidth;
  for (std::int64_t b = 0; b < count / kScaleWidth; ++b) {
    const std::int8_t* values = group.values + kScaleWidth * b;
    const std::int64_t first = at + kScaleWidth * b;
    if constexpr (Decoder<Group>::kHasMinima) {
      const VecF scale = Broadcast(group.scales[b]);
      const VecF minimum = Broadcast(group.minima[b]);
      for (std::int64_t i = 0; i < kScaleWidth; i += kLanes) {
        sink.Put(first + i, Fma(LoadI8(values + i), scale, minimum));
      }
    } else if constexpr (kHasWideScales<Group>) {
      const VecF scale = Broadcast(group.scales[b]);
      for (std::int64_t i = 0; i < kScaleWidth; i += kLanes) {
        sink.Put(first + i, Mul(LoadI8(values + i), scale));
      }
    } else {
      const VecF scale = sink.Scaled(group.scales[b]);
      for (std::int64_t i = 0; i < kScaleWidth; i += kLanes) {
        sink.PutScaled(first + i, LoadI8(values + i), scale);
      }
    }
  }
}

template <class Group, class Sink>
void DecodeBlockRow(const std::uint8_t* row, std::int64_t columns, Sink sink) {
  DecodedGroup group;
  for (std::int64_t at = 0; at < columns; at += 256) {
    const std::int64_t count = DecodeGroupAt<Group>(row, at, columns, group);
    PutGroup<Group>(group, count, at, sink);
  }
}

/// y += factors[0] * row0 + factors[1] * row1, in the steps of two AxpySinks.
struct TwoFactors {
  VecF factor[2];
};

template <class Group>
inline void AddTwoGroups(const DecodedGroup* groups, std::int64_t count, const TwoFactors& factors,
                         float* y) {
  constexpr std::int64_t kScaleWidth = Decoder<Group>::kScaleWidth;
  for (std::int64_t b = 0; b < count / kScaleWidth; ++b) {
    const std::int64_t first = kScaleWidth * b;
    VecF scales[2];
    VecF minima[2];
    for (int r = 0; r < 2; ++r) {
      scales[r] = Broadcast(groups[r].scales[b]);
      if constexpr (Decoder<Group>::kHasMinima) {
        minima[r] = Broadcast(groups[r].minima[b]);
      } else if constexpr (!kHasWideScales<Group>) {
        scales[r] = Mul(scales[r], factors.factor[r]);
      }
    }
    for (std::int64_t i = first; i < first + kScaleWidth; i += kLanes) {
      VecF sum = Load(y + i);
      for (int r = 0; r < 2; ++r) {
        const VecF value = LoadI8(groups[r].values + i);
        if constexpr (Decoder<Group>::kHasMinima) {
          sum = Fma(Fma(value, scales[r], minima[r]), factors.factor[r], sum);
        } else if constexpr (kHasWideScales<Group>) {
          sum = Fma(Mul(value, scales[r]), factors.factor[r], sum);
        } else {
          sum = Fma(value, scales[r], sum);
        }
      }
      Store(y + i, sum);
    }
  }
}

template <class Group>
void AddTwoBlockRows(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                     const TwoFactors& factors, float* y) {
  DecodedGroup groups[2];
  for (std::int64_t at = 0; at < columns; at += 256) {
    DecodeGroupAt<Group>(row0, at, columns, groups[0]);
    const std::int64_t count = DecodeGroupAt<Group>(row1, at, columns, groups[1]);
    AddTwoGroups<Group>(groups, count, factors, y + at);
  }
}

template <class Weights, class Sink>
void DecodeFloatRow(const std::uint8_t* row, std::int64_t columns, Sink sink) {
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    sink.Put(i, Weights::LoadVec(row + i * Weights::kBytes));
  }
  if (i == columns) return;
  // The tail works on a padded copy of both sides.
  const auto rest = static_cast<std::size_t>(columns - i);
  std::uint8_t w_tail[4 * kLanes] = {};
  float out_tail[kLanes] = {};
  std::memcpy(w_tail, row + i * Weights::kBytes, rest * static_cast<std::size_t>(Weights::kBytes));
  std::memcpy(out_tail, sink.out + i, rest * sizeof(float));
  Sink tail_sink = sink;
  tail_sink.out = out_tail;
  tail_sink.Put(0, Weights::LoadVec(w_tail));
  std::memcpy(sink.out + i, out_tail, rest * sizeof(float));
}

template <class Weights>
void AddTwoFloatRows(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                     const TwoFactors& factors, float* y) {
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    const std::int64_t at = i * Weights::kBytes;
    const VecF sum = Fma(Weights::LoadVec(row0 + at), factors.factor[0], Load(y + i));
    Store(y + i, Fma(Weights::LoadVec(row1 + at), factors.factor[1], sum));
  }
  if (i == columns) return;
  const std::int64_t at = i * Weights::kBytes;
  DecodeFloatRow<Weights>(row0 + at, columns - i, AxpySink{y + i, factors.factor[0]});
  DecodeFloatRow<Weights>(row1 + at, columns - i, AxpySink{y + i, factors.factor[1]});
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
