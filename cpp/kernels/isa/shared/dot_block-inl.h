// out = row . x for block-quantized rows and int8 activations.
//
// Per group of 256 weights: the eight scales of the row times those of x give alpha[8]; each block
// adds alpha * (integer dot product); offsets and minima add once per block through the sums of x.
// Bound by reading the row. Every (row, token) pair sums in the same order, whatever else the call
// computes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/groups-inl.h"

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

/// Prefetches the lines of kBytes that follow `at + ahead` of `data`, of which `num_bytes` will be
/// read: bytes of a row that is not requested are not fetched. (Inlined early by force: GCC deletes
/// calls of a function that only prefetches as having no effect.)
template <std::int64_t kBytes>
[[gnu::always_inline]] inline void PrefetchAhead(const std::uint8_t* data, std::int64_t at,
                                                 std::int64_t ahead, std::int64_t num_bytes) {
  if (at + ahead + kBytes > num_bytes) return;
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(data + at + ahead + i);
}

/// Adds the group that begins at data[r] in row r for each token; `at` is the group's index in x,
/// `num_pairs` the number of its pairs of blocks that the row has.
template <class Group, int kRows, int kTokens>
[[gnu::always_inline]] inline void AddGroup(const std::uint8_t* const* data,
                                            const QuantizedVector* x, std::int64_t at,
                                            RowSum (&sums)[kTokens][kRows], int num_pairs = 4) {
  Alpha alpha[kTokens][kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const Scale8 scales = Group::Scales(data[r]);
    // Factors of the sums of x. Formats with neither offset nor minima do not use them.
    Scale8 offsets = scales;
    if constexpr (Group::kHasMinima) offsets = Group::Minima(data[r]);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      alpha[t][r] = MakeAlpha(Mul8(scales, Load8(x[t].scales + 8 * at)));
      if constexpr (Group::kHasMinima || Group::kOffset != 0) {
        sums[t][r].offsets = Fma8(offsets, Load8(x[t].sums + 8 * at), sums[t][r].offsets);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < num_pairs; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Pair pair = Group::LoadPair(data[r], i);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const std::int8_t* values = x[t].values + 256 * at + 64 * i;
        if constexpr (Group::kIsSigned) {
          DotSigned(sums[t][r].pairs, pair, values, alpha[t][r], i);
        } else {
          DotUnsigned(sums[t][r].pairs, pair, values, alpha[t][r], i);
        }
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
  std::int64_t num_following = 0;  ///< rows after the last, prefetched for the next call
  /// The number of this pass over the same rows, and of all passes: each has other tokens.
  std::int64_t pass = 0, num_passes = 1;

  /// Bytes from the start of row r to the end of the last row, each of `row_bytes`, that may be
  /// prefetched.
  std::int64_t BytesFrom(std::int64_t r, std::int64_t row_bytes) const {
    return ahead == 0 ? 0 : (num_rows + num_following - 1 - r) * row_stride + row_bytes;
  }
};

/// The rows after those of a call with several passes. Each pass prefetches its share of them,
/// evenly, into the second-level cache, where they wait for their own passes.
class NextRows {
 public:
  NextRows(const DotArguments& a, std::int64_t row_bytes) : num_passes_(a.num_passes) {
    const std::int64_t begin = a.num_rows * a.row_stride;
    const std::int64_t end = a.BytesFrom(0, row_bytes);
    data_ = a.rows + begin;
    at_ = begin * a.pass / a.num_passes;
    end_ = end - begin;
  }
  /// Call it for each piece of `num_bytes` of the call's own rows.
  [[gnu::always_inline]] void Ask(std::int64_t num_bytes) {
    const std::int64_t stop = at_ + num_bytes / num_passes_;
    for (std::int64_t i = (at_ + 63) / 64 * 64; i < stop && i < end_; i += 64) {
      __builtin_prefetch(data_ + i, 0, 2);
    }
    at_ = stop;
  }

 private:
  const std::uint8_t* data_;
  std::int64_t at_, end_, num_passes_;
};

/// The rows of a tile; the last of all stands in for those that are missing.
template <int kRows>
struct TileRows {
  const std::uint8_t* row[kRows];
  std::int64_t last;  ///< index of the last row that is no stand-in

  TileRows(const DotArguments& a, std::int64_t first) : last(a.num_rows - 1 - first) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r)
      row[r] = a.rows + (first + (r < last ? r : last)) * a.row_stride;
  }
};

template <class Group, int kRows, int kTokens>
void DotBlockRows(const DotArguments& a) {
  constexpr std::int64_t kBytes = kGroupBytes<Group>;
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
  // The tails of the rows, all as long: what follows them stays zero.
  std::uint8_t padded[kRows][kBytes];
  if (tail_blocks > 0) std::memset(padded, 0, sizeof padded);
  for (std::int64_t row = 0; row < a.num_rows; row += kRows) {
    const TileRows<kRows> rows(a, row);
    const std::int64_t num_bytes = a.BytesFrom(row, row_bytes);
    RowSum sums[kTokens][kRows];
    const std::uint8_t* data[kRows];
    for (std::int64_t g = 0; g < num_groups; ++g) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        PrefetchAhead<kBytes>(rows.row[0], r * a.row_stride + g * kBytes, a.ahead, num_bytes);
        data[r] = rows.row[r] + g * kBytes;
      }
      AddGroup<Group, kRows, kTokens>(data, x, g, sums);
    }
    if constexpr (Group::kBlockWeights == 32) {
      if (tail_blocks > 0) {
        for (int r = 0; r < kRows; ++r) {
          std::memcpy(padded[r], rows.row[r] + num_groups * kBytes,
                      static_cast<std::size_t>(tail_blocks * Group::kBlockBytes));
          data[r] = padded[r];
        }
        const auto num_pairs = static_cast<int>((tail_blocks + 1) / 2);
        AddGroup<Group, kRows, kTokens>(data, tail_x, 0, sums, num_pairs);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        if (r <= rows.last) a.out[t * a.out_stride + row + r] = Finish<Group>(sums[t][r]);
      }
    }
  }
}

/// Q6_K: an integer scale per 16 weights is applied inside the integer dot product, or when dot
/// products become floats.
template <int kRows, int kTokens>
void DotSixBitRows(const DotArguments& a) {
  constexpr std::int64_t kBytes = Q6_KGroup::kBlockBytes;
  const std::int64_t num_groups = a.columns / 256;
  for (std::int64_t row = 0; row < a.num_rows; row += kRows) {
    const TileRows<kRows> rows(a, row);
    const std::int64_t num_bytes = a.BytesFrom(row, num_groups * kBytes);
    SixBitSum sums[kTokens][kRows];
    for (std::int64_t g = 0; g < num_groups; ++g) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        PrefetchAhead<kBytes>(rows.row[0], r * a.row_stride + g * kBytes, a.ahead, num_bytes);
        const std::uint8_t* group = rows.row[r] + g * kBytes;
        const SixBitScales scales = LoadSixBitScales(group + Q6_KGroup::kScalesAt);
        const Scale8 scale = Broadcast8(ScalarF16(group + Q6_KGroup::kScaleAt));
        SixBitAlpha alpha[kTokens];
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const Scale8 x_scales = Load8(a.x[t].quantized.scales + 8 * g);
          alpha[t] = MakeSixBitAlpha(scales, Mul8(scale, x_scales));
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const auto pair = Q6_KGroup::LoadPair(group, i);
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) {
            const std::int8_t* values = a.x[t].quantized.values + 256 * g + 64 * i;
            DotSixBit(sums[t][r], pair, values, alpha[t], scales, i);
          }
        }
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        if (r <= rows.last) a.out[t * a.out_stride + row + r] = Total(sums[t][r]);
      }
    }
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
