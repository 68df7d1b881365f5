// out = row . x for f32, f16 and bf16 rows and more than two tokens: tiles of rows and tokens.
//
// A tile's sums fill the registers, so that a weight is converted once for several tokens and an
// activation is loaded once for several rows. Activations of many tokens do not fit into the first
// cache, so a group of tiles runs over a stretch of columns at a time. F16 with AVX-512 on a Zen 5,
// sixteen tokens, billion weights/s of one thread: 2.9 by whole rows, 3.7 in groups of four tiles,
// 4.6 of eight. Bits are those of dot_float-inl.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_float-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFloatTileRows = 3;
constexpr bool kHasLineVectors = kLanes * sizeof(float) >= 64;
constexpr int kGroupTiles = kHasLineVectors ? 8 : 4;
/// Columns that a group of rows adds at a time: as many as a pass finds in the first cache.
constexpr std::int64_t kTileColumns =
    kCachedBytes / (kFloatTileTokens * std::int64_t{sizeof(float)});

/// A few rows with all tokens of a call.
struct FloatTile {
  const std::uint8_t* rows[kFloatTileRows];
  VecF sums[kMaxDotTokens][kFloatTileRows][kFloatSums];
};

/// The rows after a group, prefetched into the second-level cache while it is multiplied: at an
/// even pace, in the order of memory. A few lines with every step: many at once would displace the
/// first cache's own requests, which would then wait for memory too.
struct RowsToCome {
  const std::uint8_t* at = nullptr;
  const std::uint8_t* end = nullptr;
  std::int64_t pace = 0;  ///< bytes for each step, whole lines

  [[gnu::always_inline]] void Ask() {
    const std::uint8_t* stop = at + pace < end ? at + pace : end;
    for (; at < stop; at += 64) __builtin_prefetch(at, 0, 2);
  }
};

/// Adds columns [begin, end) to the sums from `sum` on of tokens [token, token + kTokens). The sums
/// take all the registers; the other sums follow in turn.
template <class Weights, int kRows, int kTokens, int kSums>
void AddTileSums(FloatTile& tile, const ActivationRow* inputs, std::int64_t begin, std::int64_t end,
                 int sum, std::int64_t token, RowsToCome& to_come) {
  VecF sums[kTokens][kSums][kRows];
  const float* x[kTokens];
  const std::uint8_t* rows[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) rows[r] = tile.rows[r];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    x[t] = inputs[token + t].values;
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums[t][s][r] = begin == 0 ? Zero() : tile.sums[token + t][r][sum + s];
      }
    }
  }
  RowsToCome asked = to_come;
  for (std::int64_t i = begin + sum * kLanes; i < end; i += kTileStep) {
    asked.Ask();
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      const std::int64_t at = i + s * kLanes;
      VecF w[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        w[r] = Weights::LoadVec(rows[r] + at * Weights::kBytes);
        KeepInRegister(w[r]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        VecF value = Load(x[t] + at);
        if constexpr (kRows > 1) KeepInRegister(value);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[t][s][r] = Fma(w[r], value, sums[t][s][r]);
      }
    }
  }
  to_come = asked;
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) tile.sums[token + t][r][sum + s] = sums[t][s][r];
    }
  }
}

/// Sums per pair that registers hold at once, for `pairs` pairs of row and token.
constexpr int SumsAtOnce(std::int64_t pairs) {
  const int fitting = kFloatTileSums >= 4 * pairs ? 4 : kFloatTileSums >= 2 * pairs ? 2 : 1;
  return fitting < kFloatSums ? fitting : kFloatSums;
}

/// AddTileSums for all sums of up to kFloatTileTokens tokens.
template <class Weights, int kRows, int kTokens = kFloatTileTokens>
void AddTile(FloatTile& tile, const ActivationRow* x, std::int64_t begin, std::int64_t end,
             std::int64_t token, std::int64_t num_tokens, RowsToCome& to_come) {
  if constexpr (kTokens > 1) {
    if (num_tokens < kTokens) {
      return AddTile<Weights, kRows, kTokens - 1>(tile, x, begin, end, token, num_tokens, to_come);
    }
  }
  constexpr int kSums = SumsAtOnce(kRows * kTokens);
  for (int sum = 0; sum < kFloatSums; sum += kSums) {
    AddTileSums<Weights, kRows, kTokens, kSums>(tile, x, begin, end, sum, token, to_come);
  }
}

/// The last columns, fewer than kTileStep, go to the first sum.
template <class Weights, int kRows>
void AddTileTail(FloatTile& tile, const ActivationRow* x, std::int64_t begin, std::int64_t columns,
                 std::int64_t num_tokens) {
  for (std::int64_t i = begin; i < columns; i += kLanes) {
    const std::int64_t rest = columns - i < kLanes ? columns - i : kLanes;
    VecF w[kRows];
    for (int r = 0; r < kRows; ++r) {
      std::uint8_t w_tail[4 * kLanes] = {};
      std::memcpy(w_tail, tile.rows[r] + i * Weights::kBytes,
                  static_cast<std::size_t>(rest * Weights::kBytes));
      w[r] = Weights::LoadVec(w_tail);
    }
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      float x_tail[kLanes] = {};
      std::memcpy(x_tail, x[t].values + i, static_cast<std::size_t>(rest) * sizeof(float));
      const VecF value = Load(x_tail);
      for (int r = 0; r < kRows; ++r) {
        tile.sums[t][r][0] = Fma(w[r], value, tile.sums[t][r][0]);
      }
    }
  }
}

/// Tokens cut into passes of about the same size: nine are five and four.
struct TokenPasses {
  std::int64_t num_tokens;
  std::int64_t count = (num_tokens + kFloatTileTokens - 1) / kFloatTileTokens;

  std::int64_t Begin(std::int64_t pass) const { return num_tokens * pass / count; }
  std::int64_t Size(std::int64_t pass) const { return Begin(pass + 1) - Begin(pass); }
};

/// The rows that a group from `first` on prefetches. steps: of all its tiles, for all tokens.
inline RowsToCome Behind(const DotArguments& a, std::int64_t first, std::int64_t group_rows,
                         std::int64_t row_bytes, std::int64_t steps) {
  const std::int64_t left = a.num_rows - first - group_rows;
  if (a.ahead == 0 || left <= 0) return {};
  const std::int64_t num_rows = left < group_rows ? left : group_rows;
  const std::uint8_t* begin = a.rows + (first + group_rows) * a.row_stride;
  const std::int64_t pace = group_rows * a.row_stride / steps;
  return {begin, begin + (num_rows - 1) * a.row_stride + row_bytes, (pace + 63) / 64 * 64};
}

/// Rows [first, first + kTiles * kRows) with all tokens.
template <class Weights, int kRows, int kTiles>
inline void DotFloatGroup(const DotArguments& a, std::int64_t first, FloatTile* tiles) {
  const TokenPasses passes{a.num_tokens};
  const std::int64_t whole = a.columns / kTileStep * kTileStep;
  std::int64_t turns = 0;
  for (std::int64_t pass = 0; pass < passes.count; ++pass) {
    turns += kFloatSums / SumsAtOnce(kRows * passes.Size(pass));
  }
  RowsToCome to_come = Behind(a, first, kRows * kTiles, a.columns * Weights::kBytes,
                              kTiles * turns * (whole / kTileStep));
  for (std::int64_t begin = 0; begin < whole; begin += kTileColumns) {
    const std::int64_t end = whole - begin < kTileColumns ? whole : begin + kTileColumns;
    for (std::int64_t pass = 0; pass < passes.count; ++pass) {
      for (int i = 0; i < kTiles; ++i) {
        for (int r = 0; r < kRows; ++r) {
          tiles[i].rows[r] = a.rows + (first + i * kRows + r) * a.row_stride;
        }
        AddTile<Weights, kRows>(tiles[i], a.x, begin, end, passes.Begin(pass), passes.Size(pass),
                                to_come);
      }
    }
  }
  for (int i = 0; i < kTiles; ++i) {
    if (whole < a.columns) {
      AddTileTail<Weights, kRows>(tiles[i], a.x, whole, a.columns, a.num_tokens);
    }
    float* out = a.out + first + i * kRows;
    for (std::int64_t t = 0; t < a.num_tokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        out[t * a.out_stride + r] = Sum(SumOfSums(tiles[i].sums[t][r]));
      }
    }
  }
}

/// Rows of at least one step with up to kMaxDotTokens tokens.
template <class Weights>
void DotFloatTiles(const DotArguments& a) {
  FloatTile tiles[kGroupTiles];
  std::int64_t r = 0;
  for (; r + kGroupTiles * kFloatTileRows <= a.num_rows; r += kGroupTiles * kFloatTileRows) {
    DotFloatGroup<Weights, kFloatTileRows, kGroupTiles>(a, r, tiles);
  }
  for (; r + kFloatTileRows <= a.num_rows; r += kFloatTileRows) {
    DotFloatGroup<Weights, kFloatTileRows, 1>(a, r, tiles);
  }
  for (; r < a.num_rows; ++r) DotFloatGroup<Weights, 1, 1>(a, r, tiles);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
