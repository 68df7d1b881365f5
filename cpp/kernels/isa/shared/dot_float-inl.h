// out = row . x for f32, f16 and bf16 rows and f32 activations.
//
// Four sums of each row and token (two with sixteen lanes), which take every fourth vector each,
// hide the latency of the multiply-add; the last, incomplete vectors are padded with zeros. Rows
// come one after the other while the activations fit in the first cache, and in turns otherwise:
// F16 rows of 11,008 weights are read at 12 GB/s one by one, at 24 in turns of twelve (AMD Zen 4,
// one thread; a plain read: 25). Three and more tokens: dot_float_tiles-inl.h. Bound by reading the
// rows (4 or 2 bytes per weight) up to about eight tokens, then by the multiply-adds.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/dot_block-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

struct F32Weights {
  static constexpr std::int64_t kBytes = 4;
  static VecF LoadVec(const std::uint8_t* p) { return Load(p); }
};
struct F16Weights {
  static constexpr std::int64_t kBytes = 2;
  static VecF LoadVec(const std::uint8_t* p) { return LoadF16(p); }
};
struct Bf16Weights {
  static constexpr std::int64_t kBytes = 2;
  static VecF LoadVec(const std::uint8_t* p) { return LoadBf16(p); }
};

constexpr std::int64_t kTileStep = kFloatSums * kLanes;
constexpr std::int64_t kPageBytes = 4096;

inline VecF SumOfSums(const VecF* sums) {
  if constexpr (kFloatSums == 2) return Add(sums[0], sums[1]);
  return Add(Add(sums[0], sums[1]), Add(sums[2], sums[3]));
}

/// The hardware's prefetchers stop at the end of a page: prefetches the first lines of the page
/// after that of `data + at`, of which `num_bytes` will be read. They start again there. (Inlined
/// early by force, as PrefetchAhead.)
[[gnu::always_inline]] inline void PrefetchNextPage(const std::uint8_t* data, std::int64_t at,
                                                    std::int64_t num_bytes) {
  constexpr std::int64_t kTouchedBytes = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(data + at);
  const auto rest = static_cast<std::int64_t>(kPageBytes - address % kPageBytes);
  if (at + rest + kTouchedBytes > num_bytes) return;
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < kTouchedBytes; i += 64) {
    __builtin_prefetch(data + at + rest + i, 0, 2);
  }
}

/// Adds columns [begin, end) to the sums of each token and, unless `ahead` is 0, prefetches the
/// bytes that far ahead of them: into the second-level cache, as the first has too few requests in
/// flight to wait for memory itself.
template <class Weights, int kTokens>
[[gnu::always_inline]] inline void AddFloatColumns(const std::uint8_t* row, std::int64_t begin,
                                                   std::int64_t end, std::int64_t ahead,
                                                   const float* const* x,
                                                   VecF (&total)[kTokens][kFloatSums]) {
  for (std::int64_t i = begin; i < end; i += kTileStep) {
    if (ahead > 0) {
#pragma GCC unroll 8
      for (std::int64_t b = 0; b < kTileStep * Weights::kBytes; b += 64) {
        __builtin_prefetch(row + i * Weights::kBytes + ahead + b, 0, 2);
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < kFloatSums; ++u) {
      const VecF w = Weights::LoadVec(row + (i + u * kLanes) * Weights::kBytes);
      for (int t = 0; t < kTokens; ++t) {
        total[t][u] = Fma(w, Load(x[t] + i + u * kLanes), total[t][u]);
      }
    }
  }
}

/// Adds the last columns, fewer than kTileStep, to the first sum of each token.
template <class Weights, int kTokens>
inline void AddFloatTail(const std::uint8_t* row, std::int64_t begin, std::int64_t columns,
                         const float* const* x, VecF (&total)[kTokens][kFloatSums]) {
  for (std::int64_t i = begin; i < columns; i += kLanes) {
    const std::int64_t rest = columns - i < kLanes ? columns - i : kLanes;
    std::uint8_t w_tail[4 * kLanes] = {};
    float x_tail[kLanes] = {};
    std::memcpy(w_tail, row + i * Weights::kBytes,
                static_cast<std::size_t>(rest * Weights::kBytes));
    const VecF w = Weights::LoadVec(w_tail);
    for (int t = 0; t < kTokens; ++t) {
      std::memcpy(x_tail, x[t] + i, static_cast<std::size_t>(rest) * sizeof(float));
      total[t][0] = Fma(w, Load(x_tail), total[t][0]);
    }
  }
}

/// sum[t] = row . x[t]; every token sums in the same order for any kTokens. Of the `num_bytes` from
/// the start of the row on, what lies `ahead` is prefetched.
template <class Weights, int kTokens>
inline void DotFloatRow(const std::uint8_t* row, std::int64_t columns, std::int64_t ahead,
                        std::int64_t num_bytes, const float* const* x, float* sum) {
  constexpr std::int64_t kPageColumns = kPageBytes / Weights::kBytes;
  VecF total[kTokens][kFloatSums];
  for (int t = 0; t < kTokens; ++t) {
    for (int u = 0; u < kFloatSums; ++u) total[t][u] = Zero();
  }
  const std::int64_t whole = columns / kTileStep * kTileStep;
  for (std::int64_t begin = 0; begin < whole; begin += kPageColumns) {
    const std::int64_t end = whole - begin < kPageColumns ? whole : begin + kPageColumns;
    const bool has_more = ahead > 0 && end * Weights::kBytes + ahead <= num_bytes;
    if (has_more) {
      AddFloatColumns<Weights, kTokens>(row, begin, end, ahead, x, total);
    } else {
      PrefetchNextPage(row, begin * Weights::kBytes, num_bytes);
      AddFloatColumns<Weights, kTokens>(row, begin, end, 0, x, total);
    }
  }
  AddFloatTail<Weights, kTokens>(row, whole, columns, x, total);
  for (int t = 0; t < kTokens; ++t) {
    sum[t] = Sum(SumOfSums(total[t]));
  }
}

template <class Weights, int kTokens>
void DotFloatRows(const DotArguments& a) {
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = a.x[t].values;
  for (std::int64_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t num_bytes =
        (a.num_rows + a.num_following - 1 - r) * a.row_stride + a.columns * Weights::kBytes;
    float sums[kTokens];
    DotFloatRow<Weights, kTokens>(a.rows + r * a.row_stride, a.columns, a.ahead, num_bytes, x,
                                  sums);
    for (int t = 0; t < kTokens; ++t) a.out[t * a.out_stride + r] = sums[t];
  }
}

/// Activations of more bytes than this, about half a first cache, are loaded from the second one
/// when a row has passed through the first: rows are then read in turns, a few vectors of each, so
/// that activations are loaded once for all of them.
constexpr std::int64_t kCachedBytes = 16 * 1024;
constexpr int kTurnSums = 2;
constexpr int kMaxTurnTokens = 2;
/// Rows in turns: as many as registers hold sums for.
template <int kTokens>
constexpr int kTurnRows = kFloatTileSums / (kTurnSums * kTokens);
/// Columns between two groups of sums, where registers do not hold all: these weights are still in
/// the first cache.
constexpr std::int64_t kTurnColumns = kFloatSums == kTurnSums ? std::int64_t{1} << 40 : 512;

/// Sums of rows that are read in turns.
template <int kRows, int kTokens>
struct TurnSums {
  VecF of[kRows][kTokens][kFloatSums];
};

/// Adds columns [begin, end) to the sums [sum, sum + kTurnSums) of kRows rows from `rows` on.
template <class Weights, int kRows, int kTokens>
void AddTurns(const DotArguments& a, const std::uint8_t* rows, std::int64_t begin, std::int64_t end,
              int sum, TurnSums<kRows, kTokens>& all) {
  VecF sums[kRows][kTokens][kTurnSums];
  const float* x[kTokens];
  for (int t = 0; t < kTokens; ++t) x[t] = a.x[t].values;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int u = 0; u < kTurnSums; ++u) sums[r][t][u] = all.of[r][t][sum + u];
    }
  }
  const std::int64_t last_ahead =
      a.ahead > 0 && sum == 0 ? a.columns - a.ahead / Weights::kBytes : 0;
  for (std::int64_t i = begin + sum * kLanes; i < end; i += kTileStep) {
    if (i < last_ahead) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        __builtin_prefetch(rows + r * a.row_stride + i * Weights::kBytes + a.ahead, 0, 2);
      }
    }
    VecF value[kTokens][kTurnSums];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int u = 0; u < kTurnSums; ++u) {
        value[t][u] = Load(x[t] + i + u * kLanes);
        KeepInRegister(value[t][u]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const std::uint8_t* row = rows + r * a.row_stride + i * Weights::kBytes;
#pragma GCC unroll 4
      for (int u = 0; u < kTurnSums; ++u) {
        const VecF w = Weights::LoadVec(row + u * kLanes * Weights::kBytes);
#pragma GCC unroll 4
        for (int t = 0; t < kTokens; ++t) sums[r][t][u] = Fma(w, value[t][u], sums[r][t][u]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
      for (int u = 0; u < kTurnSums; ++u) all.of[r][t][sum + u] = sums[r][t][u];
    }
  }
}

/// Rows whose activations take more than kCachedBytes.
template <class Weights, int kTokens>
void DotFloatTurns(const DotArguments& a) {
  constexpr int kRows = kTurnRows<kTokens>;
  const std::int64_t whole = a.columns / kTileStep * kTileStep;
  std::int64_t first = 0;
  for (; first + kRows <= a.num_rows; first += kRows) {
    const std::uint8_t* rows = a.rows + first * a.row_stride;
    TurnSums<kRows, kTokens> sums;
    for (auto& row : sums.of) {
      for (auto& token : row) {
        for (VecF& sum : token) sum = Zero();
      }
    }
    for (std::int64_t begin = 0; begin < whole; begin += kTurnColumns) {
      const std::int64_t end = whole - begin < kTurnColumns ? whole : begin + kTurnColumns;
      for (int sum = 0; sum < kFloatSums; sum += kTurnSums) {
        AddTurns<Weights, kRows, kTokens>(a, rows, begin, end, sum, sums);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const float* x[kTokens];
      for (int t = 0; t < kTokens; ++t) x[t] = a.x[t].values;
      AddFloatTail<Weights, kTokens>(rows + r * a.row_stride, whole, a.columns, x, sums.of[r]);
      for (int t = 0; t < kTokens; ++t) {
        a.out[t * a.out_stride + first + r] = Sum(SumOfSums(sums.of[r][t]));
      }
    }
  }
  DotArguments rest = a;
  rest.rows = a.rows + first * a.row_stride;
  rest.num_rows = a.num_rows - first;
  rest.out = a.out + first;
  DotFloatRows<Weights, kTokens>(rest);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
