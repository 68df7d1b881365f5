// Adding rows of superblocks with four-bit codes. The codes become floats in registers: they select
// from sixteen floats by a permutation.
//
// The 4-byte words of a superblock are sorted by block first. Its bytes then hold codes 0 to 15 in
// their lower halves and codes 16 to 31 in their upper ones, a quarter of a vector for each block.
#pragma once

#include "kernels/isa/avx512/block_lanes.h"
#include "kernels/isa/shared/superblocks-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// A superblock whose eight blocks are ready to be added.
template <class Superblock>
class NibbleBlocks {
 public:
  NibbleBlocks(const std::uint8_t* data, float factor) {
    const __m512i first = _mm512_loadu_si512(data + Superblock::kCodesAt);
    const __m512i second = _mm512_loadu_si512(data + Superblock::kCodesAt + 64);
    const __m512i places =
        _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i later = _mm512_add_epi32(places, _mm512_set1_epi32(4));
    _mm512_store_si512(bytes_, _mm512_permutex2var_epi32(first, places, second));
    _mm512_store_si512(bytes_ + 64, _mm512_permutex2var_epi32(first, later, second));
    if constexpr (Superblock::kHasMinima) {
      Store8(scales_, Superblock::Scales(data, 0));
      Store8(minima_, Superblock::Minima(data));
    } else {
      Store8(scales_, Mul8(Superblock::Scales(data, 0), Broadcast8(factor)));
    }
    factor_ = Broadcast(factor);
  }

  /// Adds block `b` times the factor to two vectors, in the steps of AxpySink.
  [[gnu::always_inline]] void Add(int b, VecF (&sums)[2]) const {
    // Permutations read the lowest four bits of each index alone.
    const __m512i codes = _mm512_cvtepu8_epi32(LoadBytes16(bytes_ + 16 * b));
    sums[0] = AddVector(b, codes, sums[0]);
    sums[1] = AddVector(b, _mm512_srli_epi32(codes, 4), sums[1]);
  }

  /// Block `b` as integers, or with minima as weights.
  [[gnu::always_inline]] void Unpack(int b, VecF (&values)[2]) const {
    const __m512i codes = _mm512_cvtepu8_epi32(LoadBytes16(bytes_ + 16 * b));
    values[0] = Values(codes);
    values[1] = Values(_mm512_srli_epi32(codes, 4));
    if constexpr (Superblock::kHasMinima) {
      for (VecF& value : values) {
        value = Fma(value, Broadcast(scales_[b]), Broadcast(minima_[b]));
      }
    }
  }
  /// The scale of a block times the factor.
  [[gnu::always_inline]] float Scale(int b) const { return scales_[b]; }

 private:
  [[gnu::always_inline]] static VecF Values(__m512i codes) {
    constexpr float k = Superblock::kOffset;
    const __m512 values =
        _mm512_setr_ps(0 - k, 1 - k, 2 - k, 3 - k, 4 - k, 5 - k, 6 - k, 7 - k, 8 - k, 9 - k, 10 - k,
                       11 - k, 12 - k, 13 - k, 14 - k, 15 - k);
    return _mm512_permutexvar_ps(codes, values);
  }
  [[gnu::always_inline]] VecF AddVector(int b, __m512i codes, VecF sum) const {
    const VecF value = Values(codes);
    const VecF scale = Broadcast(scales_[b]);
    if constexpr (Superblock::kHasMinima) {
      return Fma(Fma(value, scale, Broadcast(minima_[b])), factor_, sum);
    } else {
      return Fma(value, scale, sum);
    }
  }

  alignas(64) std::uint8_t bytes_[128];
  float scales_[8];
  float minima_[Superblock::kHasMinima ? 8 : 1];
  VecF factor_;
};

template <class Superblock>
  requires requires { Superblock::kCodesAt; }
struct NibbleRows<Superblock> {
  static void Add(const std::uint8_t* row, std::int64_t columns, float factor, float* y) {
    Room room;
    for (std::int64_t at = 0; at < columns; at += kSuperblockWeights, row += Superblock::kBytes) {
      const NibbleBlocks<Superblock> blocks(Whole(row, columns - at, room), factor);
      AddBlocks(y + at, columns - at, [&](int b, VecF(&sums)[2]) { blocks.Add(b, sums); });
    }
  }
  static void AddTwo(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                     float factor0, float factor1, float* y) {
    Room room;
    for (std::int64_t at = 0; at < columns; at += kSuperblockWeights) {
      const NibbleBlocks<Superblock> blocks0(Whole(row0, columns - at, room), factor0);
      const NibbleBlocks<Superblock> blocks1(Whole(row1, columns - at, room), factor1);
      AddBlocks(y + at, columns - at, [&](int b, VecF(&sums)[2]) {
        blocks0.Add(b, sums);
        blocks1.Add(b, sums);
      });
      row0 += Superblock::kBytes;
      row1 += Superblock::kBytes;
    }
  }

  /// Integers and the scales of blocks, or with minima weights.
  static void Unpack(const std::uint8_t* data, float* values, float* scales) {
    const NibbleBlocks<Superblock> blocks(data, 1.0F);
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      VecF weights[2];
      blocks.Unpack(b, weights);
      Store(values + 32 * b, weights[0]);
      Store(values + 32 * b + kLanes, weights[1]);
      if constexpr (!Superblock::kHasMinima) {
        scales[b] = blocks.Scale(b);
      }
    }
  }

 private:
  using Tail = TailSuperblock<Superblock>;
  using Room = typename Tail::Room;

  /// The superblock at `data`, of which the row has `count` weights or more.
  [[gnu::always_inline]] static const std::uint8_t* Whole(const std::uint8_t* data,
                                                          std::int64_t count, Room& room) {
    return count < kSuperblockWeights ? Tail(count).Widen(data, room) : data;
  }
  template <typename AddBlock>
  [[gnu::always_inline]] static void AddBlocks(float* y, std::int64_t count, const AddBlock& add) {
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      if (32 * b >= count) break;
      VecF sums[2] = {Load(y + 32 * b), Load(y + 32 * b + kLanes)};
      add(b, sums);
      Store(y + 32 * b, sums[0]);
      Store(y + 32 * b + kLanes, sums[1]);
    }
  }
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
