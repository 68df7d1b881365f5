// out = row . x for block-quantized rows and int8 activations.
//
// Per group of 256 weights: the eight scales of the row times those of x give alpha[8]; each block
// adds alpha * (integer dot product); offsets and minima add once per block through the sums of x.
// Bound by reading the row. Every (row, token) pair sums in the same order, whatever else is asked.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/isa/shared/groups-inl.h"
#include "quant/lowbit.h"
#include "quant/superblock.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// The last, incomplete group of the activations, padded with zeros.
struct TailActivations {
  std::int8_t values[256];
  float scales[8];
  float sums[8];
};

inline QuantizedVector PadTail(const QuantizedVector& x, std::int64_t group, std::int64_t blocks,
                               TailActivations& tail) {
  std::memset(&tail, 0, sizeof tail);
  const auto num_blocks = static_cast<std::size_t>(blocks);
  std::memcpy(tail.values, x.values + 256 * group, 32 * num_blocks);
  std::memcpy(tail.scales, x.scales + 8 * group, sizeof(float) * num_blocks);
  std::memcpy(tail.sums, x.sums + 8 * group, sizeof(float) * num_blocks);
  return {tail.values, nullptr, tail.scales, tail.sums, 256};
}

/// Running sums of one row with one token.
struct RowSum {
  PairSum pairs{};
  Scale8 offsets = Broadcast8(0.0F);
};

/// Asks for the lines of kBytes that follow `at + ahead` of `data`, of which `num_bytes` will be
/// read: bytes of a row that is not requested are not fetched.
/// (Inlined early by force: GCC deletes calls of a function that only prefetches as having no
/// effect.)
template <std::int64_t kBytes>
[[gnu::always_inline]] inline void PrefetchAhead(const std::uint8_t* data, std::int64_t at,
                                                 std::int64_t ahead, std::int64_t num_bytes) {
  if (at + ahead + kBytes > num_bytes) return;
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(data + at + ahead + i);
}

/// Adds the group at `data` for each token; `at` is the group's index in x.
template <class Group, int kTokens>
inline void AddGroup(const std::uint8_t* data, const QuantizedVector* x, std::int64_t at,
                     RowSum* sums) {
  const Scale8 scales = Group::Scales(data);
  Alpha alpha[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    alpha[t] = MakeAlpha(Mul8(scales, Load8(x[t].scales + 8 * at)));
  }
  if constexpr (Group::kHasMinima) {
    const Scale8 minima = Group::Minima(data);
    for (int t = 0; t < kTokens; ++t) {
      sums[t].offsets = Fma8(minima, Load8(x[t].sums + 8 * at), sums[t].offsets);
    }
  } else if constexpr (Group::kOffset != 0) {
    for (int t = 0; t < kTokens; ++t) {
      sums[t].offsets = Fma8(scales, Load8(x[t].sums + 8 * at), sums[t].offsets);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Pair pair = Group::LoadPair(data, i);
    for (int t = 0; t < kTokens; ++t) {
      const std::int8_t* values = x[t].values + 256 * at + 64 * i;
      if constexpr (Group::kIsSigned) {
        DotSigned(sums[t].pairs, pair, values, alpha[t], i);
      } else {
        DotUnsigned(sums[t].pairs, pair, values, alpha[t], i);
      }
    }
  }
}

template <class Group>
inline float Finish(const RowSum& sum) {
  if constexpr (Group::kHasMinima) return Total(sum.pairs) + Sum8(sum.offsets);
  if constexpr (Group::kOffset != 0) {
    return Total(sum.pairs) - static_cast<float>(Group::kOffset) * Sum8(sum.offsets);
  }
  return Total(sum.pairs);
}

struct DotArguments {
  const std::uint8_t* rows;
  std::int64_t row_stride, num_rows, columns;
  const ActivationRow* x;
  std::int64_t num_tokens;
  float* out;
  std::int64_t out_stride;
  std::int64_t ahead;
  std::int64_t num_following = 0;  ///< rows behind the last that are asked for next

  /// Bytes from the start of row r to the end of the last row, each of `row_bytes`, that may be
  /// prefetched.
  std::int64_t BytesFrom(std::int64_t r, std::int64_t row_bytes) const {
    return ahead == 0 ? 0 : (num_rows + num_following - 1 - r) * row_stride + row_bytes;
  }
};

template <class Group, int kTokens>
void DotBlockRows(const DotArguments& a) {
  const std::int64_t num_blocks = a.columns / 32;
  const std::int64_t num_groups = num_blocks / 8;
  const std::int64_t tail_blocks = num_blocks % 8;
  const std::int64_t row_bytes = a.columns / Group::kBlockWeights * Group::kBlockBytes;
  QuantizedVector x[kTokens];
  QuantizedVector tail_x[kTokens];
  TailActivations tail[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    x[t] = a.x[t].quantized;
    if (tail_blocks > 0) tail_x[t] = PadTail(x[t], num_groups, tail_blocks, tail[t]);
  }
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::uint8_t* row = a.rows + r * a.row_stride;
    const std::int64_t num_bytes = a.BytesFrom(r, row_bytes);
    RowSum sums[kTokens];
    for (std::int64_t g = 0; g < num_groups; ++g) {
      PrefetchAhead<kGroupBytes<Group>>(row, g * kGroupBytes<Group>, a.ahead, num_bytes);
      AddGroup<Group, kTokens>(row + g * kGroupBytes<Group>, x, g, sums);
    }
    if constexpr (Group::kBlockWeights == 32) {
      if (tail_blocks > 0) {
        std::uint8_t padded[kGroupBytes<Group>] = {};
        std::memcpy(padded, row + num_groups * kGroupBytes<Group>,
                    static_cast<std::size_t>(tail_blocks * Group::kBlockBytes));
        AddGroup<Group, kTokens>(padded, tail_x, 0, sums);
      }
    }
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = Finish<Group>(sums[t]);
  }
}

/// Q6_K: an integer scale per 16 weights is applied inside the integer dot product.
template <int kTokens>
void DotSixBitRows(const DotArguments& a) {
  const std::int64_t num_groups = a.columns / 256;
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::uint8_t* row = a.rows + r * a.row_stride;
    const std::int64_t num_bytes = a.BytesFrom(r, num_groups * Q6_KGroup::kBlockBytes);
    PairSum sums[kTokens];
    for (std::int64_t g = 0; g < num_groups; ++g) {
      PrefetchAhead<Q6_KGroup::kBlockBytes>(row, g * Q6_KGroup::kBlockBytes, a.ahead, num_bytes);
      const std::uint8_t* group = row + g * Q6_KGroup::kBlockBytes;
      const SixBitScales scales = LoadSixBitScales(group + Q6_KGroup::kScalesAt);
      const Scale8 scale = Broadcast8(ScalarF16(group + Q6_KGroup::kScaleAt));
      Alpha alpha[kTokens];
      for (int t = 0; t < kTokens; ++t) {
        alpha[t] = MakeAlpha(Mul8(scale, Load8(a.x[t].quantized.scales + 8 * g)));
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const Pair pair = Q6_KGroup::LoadPair(group, i);
        for (int t = 0; t < kTokens; ++t) {
          DotSixBit(sums[t], pair, a.x[t].quantized.values + 256 * g + 64 * i, alpha[t], scales, i);
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = Total(sums[t]);
  }
}

/// Superblocks (quant/superblock.h, quant/lowbit.h): eight f16 scales, then codes in which 4-byte
/// lane j of every 32-byte vector belongs to block j, so the block sums need no horizontal
/// additions. A vector of sixteen lanes takes two superblocks at once. Weight = scale * (code -
/// kOffset).
struct Q4_0Superblock {
  static constexpr std::int64_t kBytes = kSuperblockBytes;
  static constexpr float kOffset = 8.0F;
  static Codes Load(const std::uint8_t* block) { return LoadCodes4(block + 16); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes4(first + 16, second + 16);
  }
};
struct Lowbit2Superblock {
  static constexpr std::int64_t kBytes = kLowbit2Bytes;
  static constexpr float kOffset = 1.5F;
  static Codes Load(const std::uint8_t* block) { return LoadCodes2(block + kLowbitCodesAt); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return Beside(Load(first), Load(second));
  }
};
struct Lowbit3Superblock {
  static constexpr std::int64_t kBytes = kLowbit3Bytes;
  static constexpr float kOffset = 3.5F;
  static Codes Load(const std::uint8_t* block) {
    return LoadCodes3(block + kLowbitCodesAt, block + kLowbit3HighBitsAt);
  }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return Beside(Load(first), Load(second));
  }
};

constexpr std::int64_t kGroupSuperblocks = kBlockLanes / 8;
/// Stands for the superblock that an odd row lacks in its last group.
constexpr std::uint8_t kZeroSuperblock[kSuperblockBytes] = {};

template <int... kVectors>
[[gnu::always_inline]] inline BlockFloats GroupDots(std::integer_sequence<int, kVectors...>,
                                                    const GroupCodes& codes,
                                                    const std::int8_t* permuted) {
  BlockDots<4, 8> dots(ZeroInts());
  (dots.template Add<kVectors>(codes.vector[kVectors],
                               LoadCodeVec(permuted + 4 * kBlockLanes * kVectors)),
   ...);
  return ToFloats(dots.Total());
}

template <class Superblock, int kTokens>
void DotSuperblockRows(const DotArguments& a) {
  constexpr std::int64_t kBytes = Superblock::kBytes;
  const std::int64_t num_superblocks = a.columns / kSuperblockWeights;
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::uint8_t* row = a.rows + r * a.row_stride;
    const std::int64_t num_bytes = a.BytesFrom(r, num_superblocks * kBytes);
    BlockFloats sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = BroadcastFloats(0.0F);
    for (std::int64_t s = 0; s < num_superblocks; s += kGroupSuperblocks) {
      PrefetchAhead<kBytes * kGroupSuperblocks>(row, s * kBytes, a.ahead, num_bytes);
      const std::uint8_t* first = row + s * kBytes;
      const std::uint8_t* second = s + 1 < num_superblocks ? first + kBytes : kZeroSuperblock;
      const BlockFloats scales = GroupScales(first, second);
      const BlockFloats minima = MulFloats(scales, BroadcastFloats(-Superblock::kOffset));
      const GroupCodes codes = Superblock::LoadGroup(first, second);
      for (int t = 0; t < kTokens; ++t) {
        const QuantizedVector& x = a.x[t].quantized;
        const BlockFloats dots = GroupDots(std::make_integer_sequence<int, 8>(), codes,
                                           x.permuted + kSuperblockWeights * s);
        sums[t] = FmaFloats(dots, MulFloats(scales, LoadFloats(x.scales + 8 * s)), sums[t]);
        sums[t] = FmaFloats(minima, LoadFloats(x.sums + 8 * s), sums[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = SumFloats(sums[t]);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
