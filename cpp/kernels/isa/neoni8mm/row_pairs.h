// Pairs of rows times pairs of tokens by smmla, which multiplies two vectors of twice eight bytes.
//
// An unpacked row is its codes in their own order, 32 to a block, then the scales of the blocks (of
// both their halves where sixteen weights share one), then their minima, if any.
#pragma once

#include <cstring>

#include "kernels/isa/neon/block_lanes.h"
#include "kernels/isa/shared/decode-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

// Blocks of every row that are multiplied with all tokens before the next ones: those of a tile's
// rows stay in the first-level cache while the tokens pass.
constexpr std::int64_t kPieceBlocks = 32;

/// Layout of an unpacked row of a format.
template <class Source>
struct Unpacked {
  using Group = Source;
  static constexpr int kParts = 32 / Decoder<Source>::kScaleWidth;  ///< scales per block
  static constexpr bool kHasMinima = Decoder<Source>::kHasMinima;

  static std::int64_t RowBytes(std::int64_t columns) {
    return (columns + columns / 32 * 4 * (kParts + (kHasMinima ? 1 : 0)) + 63) / 64 * 64;
  }
  static const std::int8_t* Codes(const std::uint8_t* row) {
    return reinterpret_cast<const std::int8_t*>(row);
  }
  static std::int64_t MinimaAt(std::int64_t columns) { return columns + columns / 8 * kParts; }
  static const float* Scales(const std::uint8_t* row, std::int64_t columns) {
    return reinterpret_cast<const float*>(row + columns);
  }
  static const float* Minima(const std::uint8_t* row, std::int64_t columns) {
    return reinterpret_cast<const float*>(row + MinimaAt(columns));
  }
};

template <class U>
void UnpackRow(const std::uint8_t* row, std::int64_t columns, std::uint8_t* unpacked) {
  for (std::int64_t at = 0; at < columns; at += 256) {
    DecodedGroup decoded;
    const std::int64_t count = DecodeGroupAt<typename U::Group>(row, at, columns, decoded);
    const auto bytes = static_cast<std::size_t>(count);
    std::memcpy(unpacked + at, decoded.values, bytes);
    std::memcpy(unpacked + columns + at / 8 * U::kParts, decoded.scales, bytes / 8 * U::kParts);
    if constexpr (U::kHasMinima) {
      std::memcpy(unpacked + U::MinimaAt(columns) + at / 8, decoded.minima, bytes / 8);
    }
  }
}

/// One block of two rows: bytes 8 k to 8 k + 7 of both in codes[k]; the scales, then the minimum,
/// if any, with the first row's number in two lanes and the second's in two.
template <class U>
struct PairBlock {
  int8x16_t codes[4];
  float32x4_t numbers[U::kParts + (U::kHasMinima ? 1 : 0)];
};

inline float32x4_t TwiceEach(float first, float second) {
  return vcombine_f32(vdup_n_f32(first), vdup_n_f32(second));
}
inline float32x4_t InTurns(float first, float second) {
  const float32x2_t both = vset_lane_f32(second, vdup_n_f32(first), 1);
  return vcombine_f32(both, both);
}

/// Thirty-two bytes of two vectors, in turns of eight from each.
[[gnu::always_inline]] inline void Interleave(const std::int8_t* first, const std::int8_t* second,
                                              int8x16_t* out) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first + 16 * half));
    const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second + 16 * half));
    out[2 * half] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
    out[2 * half + 1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
  }
}

template <class U>
void LoadPairBlocks(const std::uint8_t* first, const std::uint8_t* second, std::int64_t columns,
                    std::int64_t begin, std::int64_t end, PairBlock<U>* out) {
  for (std::int64_t block = begin; block < end; ++block, ++out) {
    Interleave(U::Codes(first) + 32 * block, U::Codes(second) + 32 * block, out->codes);
    for (int part = 0; part < U::kParts; ++part) {
      const std::int64_t at = block * U::kParts + part;
      out->numbers[part] = TwiceEach(U::Scales(first, columns)[at], U::Scales(second, columns)[at]);
    }
    if constexpr (U::kHasMinima) {
      out->numbers[1] =
          TwiceEach(U::Minima(first, columns)[block], U::Minima(second, columns)[block]);
    }
  }
}

/// Scales of rows times scales of tokens.
template <class U>
inline float32x4_t ScaleProduct(float32x4_t scales, float32x4_t x_scales) {
  if constexpr (kHasWideScales<typename U::Group>) return FiniteProduct(scales, x_scales);
  return vmulq_f32(scales, x_scales);
}

struct TokenPair {
  const QuantizedVector* first;
  const QuantizedVector* second;
};

/// A register tile of pairs of rows and pairs of tokens. Lanes of a sum: the first row with both
/// tokens, then the second.
template <class U, int kRows, int kTokens>
class Tile {
 public:
  explicit Tile(float* sums) : kept_(sums) {}

  /// Resumes the sums of earlier columns, or starts at zero.
  [[gnu::always_inline]] void Begin(bool is_first) {
#pragma GCC unroll 8
    for (int i = 0; i < kRows * kTokens; ++i) {
      sums_[i / kTokens][i % kTokens] = is_first ? vdupq_n_f32(0.0F) : vld1q_f32(kept_ + 4 * i);
    }
  }
  [[gnu::always_inline]] void Keep() const {
#pragma GCC unroll 8
    for (int i = 0; i < kRows * kTokens; ++i) {
      vst1q_f32(kept_ + 4 * i, sums_[i / kTokens][i % kTokens]);
    }
  }

  /// Blocks [begin, end); rows: the first pair's from `begin` on, those of each further pair
  /// kPieceBlocks later.
  [[gnu::always_inline]] void Multiply(const PairBlock<U>* rows, const TokenPair* tokens,
                                       std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block, ++rows) {
      int8x16_t x[kTokens][4];
      float32x4_t x_scales[kTokens];
#pragma GCC unroll 2
      for (int t = 0; t < kTokens; ++t) {
        const auto& [first, second] = tokens[t];
        Interleave(first->values + 32 * block, second->values + 32 * block, x[t]);
        x_scales[t] = InTurns(first->scales[block], second->scales[block]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) AddBlock(rows[r * kPieceBlocks], x, x_scales, sums_[r]);
      if constexpr (U::kHasMinima) AddMinima(rows, tokens, block);
    }
  }

 private:
  [[gnu::always_inline]] static void AddBlock(const PairBlock<U>& row,
                                              const int8x16_t (&x)[kTokens][4],
                                              const float32x4_t (&x_scales)[kTokens],
                                              float32x4_t (&sums)[kTokens]) {
    constexpr int kSteps = 4 / U::kParts;
#pragma GCC unroll 2
    for (int part = 0; part < U::kParts; ++part) {
#pragma GCC unroll 2
      for (int t = 0; t < kTokens; ++t) {
        int32x4_t dots = vdupq_n_s32(0);
#pragma GCC unroll 4
        for (int k = part * kSteps; k < (part + 1) * kSteps; ++k) {
          dots = vmmlaq_s32(dots, row.codes[k], x[t][k]);
        }
        const float32x4_t alpha = ScaleProduct<U>(row.numbers[part], x_scales[t]);
        sums[t] = vfmaq_f32(sums[t], vcvtq_f32_s32(dots), alpha);
      }
    }
  }

  [[gnu::always_inline]] void AddMinima(const PairBlock<U>* rows, const TokenPair* tokens,
                                        std::int64_t block) {
#pragma GCC unroll 2
    for (int t = 0; t < kTokens; ++t) {
      const auto& [first, second] = tokens[t];
      const float32x4_t x_sums = InTurns(first->sums[block], second->sums[block]);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums_[r][t] = vfmaq_f32(sums_[r][t], rows[r * kPieceBlocks].numbers[1], x_sums);
      }
    }
  }

  float* kept_;
  float32x4_t sums_[kRows][kTokens];
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
