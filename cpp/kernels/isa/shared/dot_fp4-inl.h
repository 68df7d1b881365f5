// out = row . x for MXFP4 rows and int8 activations, on the primitives of fp4.h.
//
// Rows are read as the file has them, in groups of eight blocks: one vector of scales for all,
// codes in units of two or four blocks. The last group of a row ends where the row does: blocks
// that the previous group has counted get scales of zero, so that no row is copied. Bound by
// reading the row. Every (row, token) pair sums in the same order, whatever else the call computes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_block-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kFp4GroupBytes = kGroupBytes<MXFP4Group>;
constexpr int kFp4Units = 8 / kFp4Blocks;  ///< of a group

/// The activations of a group.
struct Fp4Input {
  const std::int8_t* values;
  const float* scales;
};

template <int kUnit, int kTokens>
[[gnu::always_inline]] inline void AddFp4Units(const std::uint8_t* group, const Fp4Input* x,
                                               const Fp4Scales (&alpha)[kTokens], int first,
                                               Fp4Sum (&sums)[kTokens]) {
  if constexpr (kUnit < kFp4Units) {
    if (kUnit >= first) {
      const Fp4Codes codes = LoadFp4Codes(group + kUnit * kFp4Blocks * MXFP4Group::kBlockBytes);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        DotFp4<kUnit>(sums[t], codes, x[t].values + kUnit * kFp4Blocks * 32, alpha[t]);
      }
    }
    AddFp4Units<kUnit + 1, kTokens>(group, x, alpha, first, sums);
  }
}

/// Adds units `first` and up of a group of eight blocks for each token.
template <int kTokens>
[[gnu::always_inline]] inline void AddFp4Group(const std::uint8_t* group, const Fp4Input* x,
                                               int first, Fp4Sum (&sums)[kTokens]) {
  const Fp4Scales scales = LoadFp4Scales(group);
  Fp4Scales alpha[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) alpha[t] = TimesScales(scales, x[t].scales);
  AddFp4Units<0, kTokens>(group, x, alpha, first, sums);
}

/// The last eight blocks of x, of which the last `count` are the tail.
struct Fp4Tail {
  float scales[8] = {};
  Fp4Input input{};

  void Set(const QuantizedVector& x, std::int64_t num_blocks, std::int64_t count) {
    const std::int64_t first = num_blocks - 8;
    for (std::int64_t i = 8 - count; i < 8; ++i) scales[i] = x.scales[first + i];
    input = {x.values + 32 * first, scales};
  }
};

template <int kTokens>
struct Fp4Sums {
  Fp4Sum of[kTokens];
};

/// The sums with one more group, for the ends of rows: not inlined, because AddFp4Group is long.
template <int kTokens>
[[gnu::noinline]] Fp4Sums<kTokens> WithLastGroup(const std::uint8_t* group, const Fp4Input* x,
                                                 int first, const Fp4Sums<kTokens>& before) {
  Fp4Sums<kTokens> sums = before;
  AddFp4Group<kTokens>(group, x, first, sums.of);
  return sums;
}

/// Rows of fewer than eight blocks, as groups whose last blocks are multiplied with zeros.
template <int kTokens>
void DotShortFp4Rows(const DotArguments& a) {
  TailActivations padded_x[kTokens];
  Fp4Input x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const QuantizedVector view = PadTail(a.x[t].quantized, 0, a.columns / 32, padded_x[t]);
    x[t] = {view.values, view.scales};
  }
  std::uint8_t padded[kFp4GroupBytes];
  std::memset(padded, 127, sizeof padded);  // scales that are not subnormal
  for (std::int64_t row = 0; row < a.num_rows; ++row) {
    std::memcpy(padded, a.rows + row * a.row_stride,
                static_cast<std::size_t>(a.columns / 32 * MXFP4Group::kBlockBytes));
    const auto sums = WithLastGroup<kTokens>(padded, x, 0, {});
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + row] = Total(sums.of[t]);
  }
}

template <int kTokens>
void DotFp4Rows(const DotArguments& a) {
  const std::int64_t num_blocks = a.columns / 32;
  if (num_blocks < 8) return DotShortFp4Rows<kTokens>(a);
  const std::int64_t num_groups = num_blocks / 8;
  const std::int64_t tail_blocks = num_blocks % 8;
  const std::int64_t row_bytes = num_blocks * MXFP4Group::kBlockBytes;
  const auto first_unit = static_cast<int>((8 - tail_blocks) / kFp4Blocks);
  Fp4Tail tails[kTokens];
  Fp4Input tail_x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    tails[t].Set(a.x[t].quantized, num_blocks, tail_blocks);
    tail_x[t] = tails[t].input;
  }
  for (std::int64_t row = 0; row < a.num_rows; ++row) {
    const std::uint8_t* data = a.rows + row * a.row_stride;
    const std::int64_t num_bytes = a.BytesFrom(row, row_bytes);
    Fp4Sums<kTokens> sums{};
    Fp4Input x[kTokens];
    for (std::int64_t g = 0; g < num_groups; ++g) {
      PrefetchAhead<kFp4GroupBytes>(data, g * kFp4GroupBytes, a.ahead, num_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        x[t] = {a.x[t].quantized.values + 256 * g, a.x[t].quantized.scales + 8 * g};
      }
      AddFp4Group<kTokens>(data + g * kFp4GroupBytes, x, 0, sums.of);
    }
    if (tail_blocks > 0) {
      sums = WithLastGroup<kTokens>(data + row_bytes - kFp4GroupBytes, tail_x, first_unit,
                                    Fp4Sums<kTokens>(sums));
    }
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + row] = Total(sums.of[t]);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
