// out = row . x for f32, f16 and bf16 rows and more than two tokens: tiles of rows and tokens.
//
// One sum of each pair at a time, so that a weight is converted once for all tokens, and
// activations, which no longer fit into the first cache, are loaded once for all rows of the tile.
// Bits are those of dot_float-inl.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_float-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFloatTileRows = 3;
constexpr int kGroupTiles = 4;
/// Columns that a group of rows adds at a time: activations of a tile's tokens for so many, and the
/// sums, lie in the first cache.
constexpr std::int64_t kTileColumns = 512;

/// A few rows with all tokens of a call.
struct FloatTile {
  const std::uint8_t* rows[kFloatTileRows];
  const std::uint8_t* asked_for[kFloatTileRows];  ///< prefetched at a column's place, unless null
  VecF sums[kMaxDotTokens][kFloatTileRows][kFloatSums];
};

/// Adds columns [begin, end) to the sums from `sum` on of tokens [token, token + kTokens). The sums
/// take as many registers as there are; the others have their turn.
template <class Weights, int kRows, int kTokens, int kSums>
void AddTileSums(FloatTile& tile, const ActivationRow* inputs, std::int64_t begin, std::int64_t end,
                 int sum, std::int64_t token) {
  VecF sums[kTokens][kSums][kRows];
  const float* x[kTokens];
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
  for (std::int64_t i = begin + sum * kLanes; i < end; i += kTileStep) {
    for (int r = 0; r < kRows; ++r) {
      if (sum > 0 || tile.asked_for[r] == nullptr) continue;
      for (std::int64_t b = 0; b < kTileStep * Weights::kBytes; b += 64) {
        __builtin_prefetch(tile.asked_for[r] + i * Weights::kBytes + b);
      }
    }
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      const std::int64_t at = i + s * kLanes;
      VecF w[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) w[r] = Weights::LoadVec(tile.rows[r] + at * Weights::kBytes);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        VecF value = Load(x[t] + at);
        if constexpr (kRows > 1) KeepInRegister(value);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[t][s][r] = Fma(w[r], value, sums[t][s][r]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) tile.sums[token + t][r][sum + s] = sums[t][s][r];
    }
  }
}

/// AddTileSums for all sums of up to kFloatTileTokens tokens.
template <class Weights, int kRows, int kTokens = kFloatTileTokens>
void AddTile(FloatTile& tile, const ActivationRow* x, std::int64_t begin, std::int64_t end,
             std::int64_t token, std::int64_t num_tokens) {
  if constexpr (kTokens > 1) {
    if (num_tokens < kTokens) {
      return AddTile<Weights, kRows, kTokens - 1>(tile, x, begin, end, token, num_tokens);
    }
  }
  constexpr int kPairs = kRows * kTokens;
  constexpr int kFitting = kFloatTileSums >= 4 * kPairs ? 4 : kFloatTileSums >= 2 * kPairs ? 2 : 1;
  constexpr int kSums = kFitting < kFloatSums ? kFitting : kFloatSums;
  for (int sum = 0; sum < kFloatSums; sum += kSums) {
    AddTileSums<Weights, kRows, kTokens, kSums>(tile, x, begin, end, sum, token);
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

/// What a tile asks for while it adds columns [begin, end) of a row: the bytes `ahead`
/// behind them, for which a row of the next group takes over at the row's end; or null.
inline const std::uint8_t* AskedFor(const std::uint8_t* row, std::int64_t row_bytes,
                                    const std::uint8_t* next, std::int64_t end_bytes,
                                    std::int64_t ahead) {
  if (end_bytes + ahead <= row_bytes) return row + ahead;
  return next == nullptr ? nullptr : next - row_bytes + ahead;
}

/// Rows [first, first + kTiles * kRows) with all tokens, a stretch of columns at a time: memory is
/// read at an even pace however much is computed.
template <class Weights, int kRows, int kTiles>
inline void DotFloatGroup(const DotArguments& a, std::int64_t first, bool prefetches,
                          FloatTile* tiles) {
  constexpr std::int64_t kGroupRows = kRows * kTiles;
  const std::int64_t whole = a.columns / kTileStep * kTileStep;
  for (std::int64_t begin = 0; begin < whole; begin += kTileColumns) {
    const std::int64_t end = whole - begin < kTileColumns ? whole : begin + kTileColumns;
    for (std::int64_t token = 0; token < a.num_tokens; token += kFloatTileTokens) {
      for (int i = 0; i < kTiles; ++i) {
        for (int r = 0; r < kRows; ++r) {
          const std::int64_t row = first + i * kRows + r;
          tiles[i].rows[r] = a.rows + row * a.row_stride;
          if (!prefetches || token > 0) {
            tiles[i].asked_for[r] = nullptr;
            continue;
          }
          const bool has_next = row + kGroupRows < a.num_rows;
          tiles[i].asked_for[r] =
              AskedFor(tiles[i].rows[r], a.columns * Weights::kBytes,
                       has_next ? tiles[i].rows[r] + kGroupRows * a.row_stride : nullptr,
                       end * Weights::kBytes, a.ahead);
        }
        AddTile<Weights, kRows>(tiles[i], a.x, begin, end, token, a.num_tokens - token);
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
  const bool prefetches = a.ahead > 0;
  FloatTile tiles[kGroupTiles];
  std::int64_t r = 0;
  for (; r + kGroupTiles * kFloatTileRows <= a.num_rows; r += kGroupTiles * kFloatTileRows) {
    DotFloatGroup<Weights, kFloatTileRows, kGroupTiles>(a, r, prefetches, tiles);
  }
  for (; r + kFloatTileRows <= a.num_rows; r += kFloatTileRows) {
    DotFloatGroup<Weights, kFloatTileRows, 1>(a, r, prefetches, tiles);
  }
  for (; r < a.num_rows; ++r) DotFloatGroup<Weights, 1, 1>(a, r, prefetches, tiles);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
