// Unpacked rows of block formats, which the int8 product of int8-inl.h multiplies.
//
// An unpacked row is groups of kBlockLanes blocks: eight vectors of codes (sixteen if products take
// words), then the scales of the blocks (of both their halves where sixteen weights share one),
// then their minima, if any.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/decode-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kGroupWeights = 32 * kBlockLanes;
constexpr std::int64_t kVectorBytes = 4 * kBlockLanes;
constexpr std::int64_t kLanesBytes = 4 * kBlockLanes;

/// True if dot products take codes as words of 16 bits: the even ones of each vector of eight, then
/// the odd ones.
template <class Dots>
constexpr bool kWantsWords = requires { Dots::kWantsWords; };

/// Layout of unpacked rows. kNaturalOffset: how far the unsigned codes lie above the weights.
/// Formats that are alike once they are unpacked share a layout, and with it the code of their
/// products.
template <int kCodeBits, int kNaturalOffset, int kScalesPerBlock, bool kMinima, bool kWide>
struct UnpackedLayout {
  using Dots = BlockDots<kCodeBits, kNaturalOffset>;
  static constexpr int kStored = kStoredOffset<kNaturalOffset>;
  static constexpr int kParts = kScalesPerBlock;
  static constexpr bool kHasMinima = kMinima;
  static constexpr bool kHasWideScales = kWide;
  static constexpr int kVectors = kWantsWords<Dots> ? 16 : 8;  ///< of codes in a group
  static_assert(kVectors == 8 || kBlockLanes == 8);
  static constexpr std::int64_t kCodesBytes = kVectors * kVectorBytes;
  static constexpr std::int64_t kBytes =
      kCodesBytes + kLanesBytes * (kParts + (kHasMinima ? 1 : 0));

  static std::int64_t NumGroups(std::int64_t columns) {
    return (columns + kGroupWeights - 1) / kGroupWeights;
  }
  static std::int64_t RowBytes(std::int64_t columns) {
    return (NumGroups(columns) * kBytes + 63) / 64 * 64;
  }
};

/// A format's blocks in their layout.
template <class Source, int kCodeBits, int kNaturalOffset>
struct Unpacked : UnpackedLayout<kCodeBits, kNaturalOffset, 32 / Decoder<Source>::kScaleWidth,
                                 Decoder<Source>::kHasMinima, kHasWideScales<Source>> {
  using Group = Source;
  using Layout = typename Unpacked::UnpackedLayout;
};

/// The eight vectors of one superblock with an offset added, those of a group `kVectorBytes` apart.
/// In pieces of 32 bytes, as they were written: wider reads would wait for the writes to end.
template <int kOffset>
inline void StoreVectors(const std::int8_t* __restrict vectors, std::uint8_t* __restrict out) {
  for (int v = 0; v < 8; ++v) {
    for (int i = 0; i < 32; ++i) {
      out[v * kVectorBytes + i] = static_cast<std::uint8_t>(vectors[32 * v + i] + kOffset);
    }
  }
}

/// The same eight vectors as words, see kWantsWords.
template <class Dots>
inline void StoreWords(const std::int8_t* vectors, std::uint8_t* out) {
  for (int v = 0; v < 8; ++v, out += 2 * kVectorBytes) {
    const CodeVec codes = LoadCodeVec(vectors + kVectorBytes * v);
    StoreInts(reinterpret_cast<std::int32_t*>(out), Dots::template Words<0>(codes));
    StoreInts(reinterpret_cast<std::int32_t*>(out + kVectorBytes), Dots::template Words<1>(codes));
  }
}

/// The 256 weights at `at`, their integers in the order of superblocks.
template <class Group>
struct GroupVectors {
  DecodedGroup scaled;
  std::int8_t values[256];

  GroupVectors(const std::uint8_t* row, std::int64_t at, std::int64_t columns) {
    DecodeGroupAt<Group>(row, at, columns, scaled);
    TransposeWords(scaled.values, values);
  }
};
template <class Superblock>
struct GroupVectors<SuperblockGroup<Superblock>> {
  DecodedGroup scaled;  ///< scales and minima alone
  std::int8_t values[256];

  GroupVectors(const std::uint8_t* row, std::int64_t at, std::int64_t columns) {
    using Source = Decoder<SuperblockGroup<Superblock>>;
    const WholeGroup<SuperblockGroup<Superblock>> whole(row, at, columns);
    Source::DecodeVectors(whole.data, values);
    Source::DecodeScales(whole.data, scaled);
  }
};

/// One superblock of 256 weights to lanes [lane, lane + 8) of a group.
template <class U>
inline void UnpackSuperblockAt(const std::uint8_t* row, std::int64_t at, std::int64_t columns,
                               std::uint8_t* group, std::int64_t lane) {
  GroupVectors<typename U::Group> decoded(row, at, columns);
  if constexpr (kWantsWords<typename U::Dots>) {
    static_assert(U::kStored == 0);
    StoreWords<typename U::Dots>(decoded.values, group);
  } else {
    StoreVectors<U::kStored>(decoded.values, group + 4 * lane);
  }
  auto* scales = reinterpret_cast<float*>(group + U::kCodesBytes);
  for (int b = 0; b < 8; ++b) {
    for (int part = 0; part < U::kParts; ++part) {
      scales[part * kBlockLanes + lane + b] = decoded.scaled.scales[U::kParts * b + part];
    }
    if constexpr (U::kHasMinima) scales[kBlockLanes + lane + b] = decoded.scaled.minima[b];
  }
}

/// Rows are unpacked in the order of memory: bytes this far ahead are prefetched, across the page
/// boundaries at which processors stop doing so themselves.
constexpr std::int64_t kUnpackAhead = 2048;

template <class Group>
[[gnu::always_inline]] inline void FetchAhead(const std::uint8_t* row, std::int64_t at) {
  constexpr std::int64_t kBytes = 256 / Group::kBlockWeights * Group::kBlockBytes;
  const std::uint8_t* later = row + at / 256 * kBytes + kUnpackAhead;
  for (std::int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(later + i);
}

template <class U>
void UnpackRow(const std::uint8_t* row, std::int64_t columns, std::uint8_t* unpacked) {
  for (std::int64_t at = 0; at < columns; at += kGroupWeights, unpacked += U::kBytes) {
    for (std::int64_t lane = 0; lane < kBlockLanes; lane += 8) {
      if (at + 32 * lane < columns) {
        FetchAhead<typename U::Group>(row, at + 32 * lane);
        UnpackSuperblockAt<U>(row, at + 32 * lane, columns, unpacked, lane);
        continue;
      }
      for (std::int64_t i = 0; i < U::kBytes; i += kVectorBytes) {
        std::memset(unpacked + i + 4 * lane, 0, 32);
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
