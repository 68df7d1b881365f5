// Readers of each format's blocks, in groups of eight 32-weight blocks (256 weights).
//
// A group type has: kBlockBytes and kBlockWeights of the format, kOffset (subtracted from every
// stored integer), Scales (f32[8]) and LoadPair(group, i) for blocks 2i and 2i + 1; formats with
// minima add Minima (f32[8]), so that weight = scale * integer + minimum.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

struct Q4_0Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 18;
  static constexpr std::int32_t kOffset = 8;
  static constexpr bool kHasMinima = false, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return F16Strided8(group, kBlockBytes); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* block = group + 2 * i * kBlockBytes;
    return NibblePair16(block + 2, block + kBlockBytes + 2);
  }
};

struct Q4_1Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 20;
  static constexpr std::int32_t kOffset = 0;
  static constexpr bool kHasMinima = true, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return F16Strided8(group, kBlockBytes); }
  static Scale8 Minima(const std::uint8_t* group) { return F16Strided8(group + 2, kBlockBytes); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* block = group + 2 * i * kBlockBytes;
    return NibblePair16(block + 4, block + kBlockBytes + 4);
  }
};

struct Q5_0Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 22;
  static constexpr std::int32_t kOffset = 16;
  static constexpr bool kHasMinima = false, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return F16Strided8(group, kBlockBytes); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* first = group + 2 * i * kBlockBytes;
    const std::uint8_t* second = first + kBlockBytes;
    return AddHighBits(NibblePair16(first + 6, second + 6), ReadU32(first + 2),
                       ReadU32(second + 2));
  }
};

struct Q5_1Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 24;
  static constexpr std::int32_t kOffset = 0;
  static constexpr bool kHasMinima = true, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return F16Strided8(group, kBlockBytes); }
  static Scale8 Minima(const std::uint8_t* group) { return F16Strided8(group + 2, kBlockBytes); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* first = group + 2 * i * kBlockBytes;
    const std::uint8_t* second = first + kBlockBytes;
    return AddHighBits(NibblePair16(first + 8, second + 8), ReadU32(first + 4),
                       ReadU32(second + 4));
  }
};

struct Q8_0Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 34;
  static constexpr std::int32_t kOffset = kInt8Bias;
  static constexpr bool kHasMinima = false, kIsSigned = true;
  static Scale8 Scales(const std::uint8_t* group) { return F16Strided8(group, kBlockBytes); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* block = group + 2 * i * kBlockBytes;
    return LoadPairI8(block + 2, block + kBlockBytes + 2);
  }
};

/// Scales are any power of two of f32: their products with other scales may overflow or vanish
/// where the product of three factors does not.
struct MXFP4Group {
  static constexpr std::int64_t kBlockWeights = 32, kBlockBytes = 17;
  static constexpr std::int32_t kOffset = 0;
  static constexpr bool kHasMinima = false, kIsSigned = true, kHasWideScales = true;
  /// Byte j is that of block j: integer instructions, while vectors are busy with codes.
  static std::uint64_t Exponents(const std::uint8_t* group) {
    std::uint64_t exponents = 0;
    for (int j = 0; j < 8; ++j) {
      exponents |= static_cast<std::uint64_t>(group[j * kBlockBytes]) << (8 * j);
    }
    return exponents;
  }
  static Scale8 Scales(const std::uint8_t* group) { return PowersOfTwo8(Exponents(group)); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    const std::uint8_t* block = group + 2 * i * kBlockBytes;
    return Fp4Pair16(block + 1, block + kBlockBytes + 1);
  }
};

template <class Group>
constexpr bool kHasWideScales = requires { Group::kHasWideScales; };

/// The packed 6-bit scales and minima of Q4_K and Q5_K: 12 bytes; byte j of a result is block j's.
struct KScales {
  std::uint64_t scales;
  std::uint64_t minima;

  explicit KScales(const std::uint8_t* packed) {
    const std::uint32_t a = ReadU32(packed);
    const std::uint32_t b = ReadU32(packed + 4);
    const std::uint32_t c = ReadU32(packed + 8);
    const std::uint64_t high_scales = (c & 0x0F0F0F0FU) | ((a >> 2) & 0x30303030U);
    const std::uint64_t high_minima = ((c >> 4) & 0x0F0F0F0FU) | ((b >> 2) & 0x30303030U);
    scales = (a & 0x3F3F3F3FU) | (high_scales << 32);
    minima = (b & 0x3F3F3F3FU) | (high_minima << 32);
  }
};

inline Scale8 KGroupScales(const std::uint8_t* group) {
  return Mul8(FromBytes8(KScales(group + 4).scales), Broadcast8(ScalarF16(group)));
}
inline Scale8 KGroupMinima(const std::uint8_t* group) {
  return Mul8(FromBytes8(KScales(group + 4).minima), Broadcast8(-ScalarF16(group + 2)));
}

struct Q4_KGroup {
  static constexpr std::int64_t kBlockWeights = 256, kBlockBytes = 144;
  static constexpr std::int32_t kOffset = 0;
  static constexpr bool kHasMinima = true, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return KGroupScales(group); }
  static Scale8 Minima(const std::uint8_t* group) { return KGroupMinima(group); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    return NibblePair32(group + 16 + 32 * i);
  }
};

struct Q5_KGroup {
  static constexpr std::int64_t kBlockWeights = 256, kBlockBytes = 176;
  static constexpr std::int32_t kOffset = 0;
  static constexpr bool kHasMinima = true, kIsSigned = false;
  static Scale8 Scales(const std::uint8_t* group) { return KGroupScales(group); }
  static Scale8 Minima(const std::uint8_t* group) { return KGroupMinima(group); }
  static Pair LoadPair(const std::uint8_t* group, int i) {
    return AddHighBitsK(NibblePair32(group + 48 + 32 * i), group + 16, i);
  }
};

struct Q6_KGroup {
  static constexpr std::int64_t kBlockWeights = 256, kBlockBytes = 210;
  static constexpr std::int32_t kOffset = 32;
  static constexpr std::int64_t kScalesAt = 192, kScaleAt = 208;
  static auto LoadPair(const std::uint8_t* group, int i) {
    return SixBitPair(group + 64 * (i / 2), group + 128 + 32 * (i / 2), i % 2 == 1);
  }
};

/// Bytes of one group of 256 weights.
template <class Group>
constexpr std::int64_t kGroupBytes = Group::kBlockBytes * (256 / Group::kBlockWeights);

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
