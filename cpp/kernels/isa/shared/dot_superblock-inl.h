// out = row . x for superblocks (superblocks-inl.h) and int8 activations in their order.
//
// Per group of superblocks and token: eight integer dot products per lane, one conversion (two if a
// block has two scales), and one fused addition for the products and one for offsets or minima,
// through the sums of x. Every (row, token) pair sums in the same order, whatever else the call
// computes.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/isa/shared/dot_block-inl.h"
#include "kernels/isa/shared/superblocks-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kGroupSuperblocks = kBlockLanes / 8;
/// Stands for the superblock that an odd row lacks in its last group.
constexpr std::uint8_t kZeroSuperblock[272] = {};

/// Finds the superblocks of kRows rows, of which the last may lack blocks, and their ends.
template <class Superblock, int kRows>
class RowSuperblocks {
 public:
  explicit RowSuperblocks(std::int64_t columns)
      : num_whole_(columns / kSuperblockWeights),
        count_((columns + kSuperblockWeights - 1) / kSuperblockWeights),
        tail_(columns) {
    if constexpr (kHasRowEnds<Superblock>) {
      if (count_ % kGroupSuperblocks == 0) return;
      --count_;
      end_blocks_ = columns / 32 - 8 * count_;
    }
  }

  /// Superblocks that are read in groups; an end follows them, or the row ends there.
  std::int64_t Count() const { return count_; }
  /// The blocks of the end, 0 to 8.
  std::int64_t EndBlocks() const { return end_blocks_; }
  /// Superblock `s` of a row, the tile's row r, or zeros beyond its end.
  [[gnu::always_inline]] const std::uint8_t* At(const std::uint8_t* row, int r, std::int64_t s) {
    const std::uint8_t* at = row + s * Superblock::kBytes;
    if (s < num_whole_) [[likely]]
      return at;
    return s < count_ ? tail_.Widen(at, room_[r]) : kZeroSuperblock;
  }

 private:
  std::int64_t num_whole_, count_, end_blocks_ = 0;
  TailSuperblock<Superblock> tail_;
  typename TailSuperblock<Superblock>::Room room_[kRows];
};

/// kRows rows with kTokens tokens: codes are unpacked once for all tokens, activations are loaded
/// once for all rows.
template <class Superblock, int kRows, int kTokens>
class SuperblockTile {
 public:
  SuperblockTile() {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums_[t][r] = BroadcastFloats(0.0F);
    }
  }

  /// Adds the group of superblocks at superblock `at` of x, which begins in row r at first[r], its
  /// second half at second[r].
  [[gnu::always_inline]] void Add(const std::uint8_t* const* first,
                                  const std::uint8_t* const* second, const ActivationRow* x,
                                  std::int64_t at) {
    AddPart<0>(first, second, x, at);
    if constexpr (kParts == 2) AddPart<1>(first, second, x, at);
  }

  /// Adds the ends of the rows, of `num_blocks` blocks from ends[r] on.
  [[gnu::always_inline]] void AddEnds(const std::uint8_t* const* ends, std::int64_t num_blocks,
                                      const ActivationRow* x, std::int64_t at) {
    BlockInts dots[kTokens][kRows];
    BlockFloats scales[kRows];
    BlockFloats minima[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const RowEnd<Superblock> end(ends[r], num_blocks);
      scales[r] = end.Scales();
      if constexpr (Superblock::kHasMinima) minima[r] = end.Minima();
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        dots[t][r] = end.Dots(FirstSums(x[t].quantized, at, 0),
                              x[t].quantized.permuted + kSuperblockWeights * at);
      }
    }
    AddProducts(scales, minima, x, at, dots);
  }

  [[gnu::always_inline]] float Finish(int token, int row) const {
    return SumFloats(sums_[token][row]);
  }

 private:
  static constexpr int kParts = Superblock::kParts;
  static constexpr int kVectors = 8 / kParts;  ///< of a part
  static constexpr bool kIsSigned = kIsSignedSuperblock<Superblock>;
  using Dots =
      std::conditional_t<kIsSigned, SignedDots,
                         BlockDots<Superblock::kBits, static_cast<int>(Superblock::kOffset)>>;
  static constexpr auto kWholeOffset = static_cast<int>(Superblock::kOffset);
  /// How the offset of codes is removed: with two scales per block integer sums are the only place,
  /// and eight-bit codes would lose digits as floats.
  static constexpr bool kIsOffsetInSums = kWholeOffset != 0 && (kParts == 2 || kIsSigned);
  static constexpr bool kHasFloatOffsets = Superblock::kOffset != 0.0F && !kIsOffsetInSums;

  /// The whole blocks, or one half of each.
  template <int kPart>
  [[gnu::always_inline]] void AddPart(const std::uint8_t* const* first,
                                      const std::uint8_t* const* second, const ActivationRow* x,
                                      std::int64_t at) {
    Dots dots[kTokens][kRows];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const BlockInts start = FirstSums(x[t].quantized, at, kPart);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) dots[t][r] = Dots(start);
    }
    constexpr std::make_integer_sequence<int, kVectors> kPlaces;
    if constexpr (kRows == 1) {
      // The codes of one row fit the registers: every token in turn.
      const GroupCodes codes = Superblock::LoadGroup(first[0], second[0]);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const std::int8_t* permuted = x[t].quantized.permuted + kSuperblockWeights * at;
        AddRow<kPart>(kPlaces, codes, permuted, dots[t][0]);
      }
    } else {
      AddVectors<kPart>(kPlaces, first, second, x, kSuperblockWeights * at, dots);
    }
    Scale<kPart>(first, second, x, at, dots);
  }

  /// The initial integer sums.
  [[gnu::always_inline]] static BlockInts FirstSums(const QuantizedVector& x, std::int64_t at,
                                                    int part) {
    if constexpr (!kIsOffsetInSums) {
      return ZeroInts();
    } else {
      const std::int32_t* sums = x.half_sums + 16 * at;
      const BlockInts half = LoadInts(sums + part * kBlockLanes);
      if constexpr (kParts == 2) return MinusTimes<kWholeOffset>(half);
      return MinusTimes<kWholeOffset>(AddInts(half, LoadInts(sums + kBlockLanes)));
    }
  }

  template <int kPart>
  [[gnu::always_inline]] void Scale(const std::uint8_t* const* first,
                                    const std::uint8_t* const* second, const ActivationRow* x,
                                    std::int64_t at, const Dots (&dots)[kTokens][kRows]) {
    BlockInts totals[kTokens][kRows];
    BlockFloats scales[kRows];
    BlockFloats minima[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      scales[r] = Beside(Superblock::Scales(first[r], kPart), Superblock::Scales(second[r], kPart));
      if constexpr (Superblock::kHasMinima) {
        minima[r] = Beside(Superblock::Minima(first[r]), Superblock::Minima(second[r]));
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) totals[t][r] = dots[t][r].Total();
    }
    AddProducts(scales, minima, x, at, totals);
  }

  /// Adds the scaled sums of a group; minima are read if the layout has any.
  [[gnu::always_inline]] void AddProducts(const BlockFloats (&scales)[kRows],
                                          const BlockFloats (&minima)[kRows],
                                          const ActivationRow* x, std::int64_t at,
                                          const BlockInts (&dots)[kTokens][kRows]) {
    BlockFloats offsets[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      if constexpr (Superblock::kHasMinima) {
        offsets[r] = minima[r];
      } else if constexpr (kHasFloatOffsets) {
        offsets[r] = MulFloats(scales[r], BroadcastFloats(-Superblock::kOffset));
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const BlockFloats x_scales = LoadFloats(x[t].quantized.scales + 8 * at);
      const BlockFloats x_sums = LoadFloats(x[t].quantized.sums + 8 * at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        BlockFloats& sum = sums_[t][r];
        sum = FmaFloats(ToFloats(dots[t][r]), MulFloats(scales[r], x_scales), sum);
        if constexpr (Superblock::kHasMinima || kHasFloatOffsets) {
          sum = FmaFloats(offsets[r], x_sums, sum);
        }
      }
    }
  }

  template <int kPart, int... kPlaces>
  [[gnu::always_inline]] static void AddRow(std::integer_sequence<int, kPlaces...>,
                                            const GroupCodes& codes, const std::int8_t* permuted,
                                            Dots& dots) {
    (dots.template Add<kPlaces>(
         codes.vector[kPart * kVectors + kPlaces],
         LoadCodeVec(permuted + 4 * kBlockLanes * (kPart * kVectors + kPlaces))),
     ...);
  }

  template <int kPart, int... kPlaces>
  [[gnu::always_inline]] void AddVectors(std::integer_sequence<int, kPlaces...>,
                                         const std::uint8_t* const* first,
                                         const std::uint8_t* const* second, const ActivationRow* x,
                                         std::int64_t at, Dots (&dots)[kTokens][kRows]) const {
    (AddVector<kPart, kPlaces>(first, second, x, at, dots), ...);
  }

  /// Vectors that come from the same bytes follow each other: 0, 4, 1, 5...
  template <int kPart, int kPlace>
  [[gnu::always_inline]] void AddVector(const std::uint8_t* const* first,
                                        const std::uint8_t* const* second, const ActivationRow* x,
                                        std::int64_t at, Dots (&dots)[kTokens][kRows]) const {
    constexpr int kVector = kParts == 1 ? kPlace % 2 * 4 + kPlace / 2 : kPart * kVectors + kPlace;
    CodeVec codes[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      codes[r] = Superblock::LoadGroup(first[r], second[r]).vector[kVector];
      KeepInRegister(codes[r]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      CodeVec input = LoadCodeVec(x[t].quantized.permuted + at + 4 * kBlockLanes * kVector);
      KeepInRegister(input);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) dots[t][r].template Add<kPlace>(codes[r], input);
    }
  }

  BlockFloats sums_[kTokens][kRows];
};

template <class Superblock, int kRows, int kTokens>
void DotSuperblockRows(const DotArguments& a) {
  constexpr std::int64_t kBytes = Superblock::kBytes;
  static_assert(kBytes <= static_cast<std::int64_t>(sizeof kZeroSuperblock));
  const std::int64_t row_bytes = a.columns * kBytes / kSuperblockWeights;
  RowSuperblocks<Superblock, kRows> superblocks(a.columns);
  NextRows next(a, row_bytes);
  for (std::int64_t row = 0; row < a.num_rows; row += kRows) {
    const std::int64_t num_bytes = a.BytesFrom(row, row_bytes);
    const TileRows<kRows> rows(a, row);
    SuperblockTile<Superblock, kRows, kTokens> tile;
    for (std::int64_t s = 0; s < superblocks.Count(); s += kGroupSuperblocks) {
      if (a.num_passes == 1) {
        PrefetchAhead<kBytes * kGroupSuperblocks>(rows.row[0], s * kBytes, a.ahead, num_bytes);
      } else {
        next.Ask(kRows * kBytes * kGroupSuperblocks);
      }
      const std::uint8_t* first[kRows];
      const std::uint8_t* second[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        first[r] = superblocks.At(rows.row[r], r, s);
        second[r] = kGroupSuperblocks == 1 ? first[r] : superblocks.At(rows.row[r], r, s + 1);
      }
      tile.Add(first, second, a.x, s);
    }
    if constexpr (kHasRowEnds<Superblock>) {
      if (superblocks.EndBlocks() > 0) {
        const std::int64_t at = superblocks.Count() * kBytes;
        if (a.num_passes == 1) {
          PrefetchAhead<kBytes>(rows.row[0], at, a.ahead, num_bytes);
        } else {
          next.Ask(kRows * kBytes);
        }
        const std::uint8_t* ends[kRows];
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) ends[r] = rows.row[r] + at;
        tile.AddEnds(ends, superblocks.EndBlocks(), a.x, superblocks.Count());
      }
    }
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        if (r <= rows.last) a.out[t * a.out_stride + row + r] = tile.Finish(t, r);
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
