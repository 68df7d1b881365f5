// Rows to f32, and y += scale * row (the transposed down projection), for every format.
//
// Blocks are unpacked to int8 in a small buffer, then converted lane by lane; products of an f16
// scale and a small integer are exact in f32, so the weights equal the reference decode bit for
// bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/dot_float-inl.h"
#include "quant/superblock.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Where decoded weights go: written out, or added to y with a factor. PutScaled takes the weight
/// as value * scale, `scale` being one that Scaled has seen.
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

template <class Group>
inline void DecodeGroup(const std::uint8_t* data, DecodedGroup& group) {
  for (int i = 0; i < 4; ++i) {
    StorePair(group.values + 64 * i, Group::LoadPair(data, i), Group::kOffset);
  }
  Store8(group.scales, Group::Scales(data));
  if constexpr (Group::kHasMinima) Store8(group.minima, Group::Minima(data));
}

template <>
inline void DecodeGroup<Q6_KGroup>(const std::uint8_t* data, DecodedGroup& group) {
  for (int i = 0; i < 4; ++i) {
    StorePair(group.values + 64 * i, Q6_KGroup::LoadPair(data, i), Q6_KGroup::kOffset);
  }
  const float scale = ScalarF16(data + Q6_KGroup::kScaleAt);
  for (int i = 0; i < 16; ++i) {
    const auto factor = static_cast<std::int8_t>(data[Q6_KGroup::kScalesAt + i]);
    group.scales[i] = scale * static_cast<float>(factor);
  }
}

/// Puts `count` weights (a multiple of the scale's width) of a decoded group at `at`.
template <bool kHasMinima, int kScaleWidth, class Sink>
inline void PutGroup(const DecodedGroup& group, std::int64_t count, std::int64_t at, Sink sink) {
  // Keeps the group in memory: taking vectors apart in registers costs more than reading back.
  __asm__ volatile("" : : "r"(&group) : "memory");
  for (std::int64_t b = 0; b < count / kScaleWidth; ++b) {
    const std::int8_t* values = group.values + kScaleWidth * b;
    const std::int64_t first = at + kScaleWidth * b;
    if constexpr (kHasMinima) {
      const VecF scale = Broadcast(group.scales[b]);
      const VecF minimum = Broadcast(group.minima[b]);
      for (std::int64_t i = 0; i < kScaleWidth; i += kLanes) {
        sink.Put(first + i, Fma(LoadI8(values + i), scale, minimum));
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
    const std::int64_t count = columns - at < 256 ? columns - at : 256;
    const std::uint8_t* data = row + at / Group::kBlockWeights * Group::kBlockBytes;
    std::uint8_t padded[kGroupBytes<Group>];
    if (count < 256) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, data, static_cast<std::size_t>(count / 32 * Group::kBlockBytes));
      data = padded;
    }
    DecodeGroup<Group>(data, group);
    if constexpr (Group::kOffset == Q6_KGroup::kOffset) {
      PutGroup<false, 16>(group, count, at, sink);
    } else {
      PutGroup<Group::kHasMinima, 32>(group, count, at, sink);
    }
  }
}

/// Offsets with a half (lowbit formats) become whole by doubling the codes and halving the scale.
template <class Superblock, class Sink>
void DecodeSuperblockRow(const std::uint8_t* row, std::int64_t columns, Sink sink) {
  constexpr auto kWhole = static_cast<std::int32_t>(Superblock::kOffset);
  constexpr bool kIsDoubled = Superblock::kOffset != static_cast<float>(kWhole);
  DecodedGroup group;
  std::int8_t permuted[256];
  for (std::int64_t at = 0; at < columns; at += 256, row += Superblock::kBytes) {
    StoreCodes(permuted, Superblock::Load(row), kWhole);
    if constexpr (kIsDoubled) {
      for (std::int8_t& code : permuted) code = static_cast<std::int8_t>(2 * code - 1);
    }
    TransposeWords(permuted, group.values);
    const Scale8 scales = F16Strided8(row, 2);
    Store8(group.scales, kIsDoubled ? Mul8(scales, Broadcast8(0.5F)) : scales);
    PutGroup<false, 32>(group, 256, at, sink);
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

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
