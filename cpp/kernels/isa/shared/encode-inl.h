// Rows of f32 to block formats. Byte for byte what quant/formats/*.py write: plain
// multiplications and additions in one order, no fused ones, so every instruction set agrees.
//
// Written for the compiler's vectorizer: loops over whole blocks, sums in sixteen lanes. Needed
// when copies of weights are made at load; about a nanosecond per weight is enough.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/encode_legacy-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

inline bool EncodeMXFP4(const float* x, std::uint8_t* block) {
  float largest;
  if (!LargestWithin(x, kLargestFloat, &largest)) return false;
  // 8 to 16 steps are the largest number.
  const std::uint32_t field = std::bit_cast<std::uint32_t>(largest) >> 23;
  const std::uint32_t exponent = field > 2 ? field - 2 : 0;
  const float step = PowerOfTwo(exponent);
  block[0] = static_cast<std::uint8_t>(exponent);
  std::uint8_t codes[32];
  for (int i = 0; i < 32; ++i) {
    const float size = __builtin_fabsf(x[i]);
    int code = 0;
    for (const float middle : {0.5F, 1.5F, 2.5F, 3.5F, 5.0F, 7.0F, 10.0F}) {
      code += size > middle * step ? 1 : 0;
    }
    codes[i] = static_cast<std::uint8_t>(code | (x[i] < 0.0F && code > 0 ? 8 : 0));
  }
  WriteNibbles(codes, block + 1);
  return true;
}

/// Chooses the codes of 32 numbers for a step with this inverse, and returns the step that fits
/// them best: sum of x c / sum of c c with c the codes less their mean.
template <int kBits>
ENCODE_INLINE float FitBlock(const float* x, float inverse, std::int32_t* codes) {
  constexpr auto kLastCode = static_cast<float>((1 << kBits) - 1);
  constexpr auto kMiddle = static_cast<float>(1 << (kBits - 1));
  Lanes products[kVectors];
  Lanes squares[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const Lanes values = LanesAt(x + i * kWidth);
    Lanes place = values * inverse + kMiddle;
    place = place < 0.0F ? Lanes{} : place;
    place = place > kLastCode ? Lanes{} + kLastCode : place;
    const IntLanes code = __builtin_convertvector(place, IntLanes);
    std::memcpy(codes + i * kWidth, &code, sizeof code);
    const Lanes centred = __builtin_convertvector(code, Lanes) - kLastCode / 2;
    products[i] = values * centred;
    squares[i] = centred * centred;
  }
  return SumLanes<kVectors>(products) / SumLanes<kVectors>(squares);
}

/// Steps and codes of 8 blocks of 32 numbers, see quant/formats/_lowbit.py; false if a number is
/// too large. Block by block in each stage, so that the long chains of one block overlap.
template <int kBits>
inline bool FitSteps(const float* x, float* steps, std::int32_t* codes) {
  bool is_within = true;
  for (int j = 0; j < 8; ++j) {
    float largest;
    is_within &= LargestWithin(x + 32 * j, kMaxHalf / 2, &largest);
    Lanes squares[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const Lanes values = LanesAt(x + 32 * j + i * kWidth);
      squares[i] = values * values;
    }
    steps[j] = SumLanes<kVectors>(squares) / 32.0F;
  }
  if (!is_within) return false;
  for (int j = 0; j < 8; ++j) {
    steps[j] = __builtin_sqrtf(steps[j]) * (kBits == 2 ? kLowbit2Step : kLowbit3Step);
  }
  for (std::int32_t fit = 0; fit < kLowbitFits; ++fit) {
    float inverses[8];
    for (int j = 0; j < 8; ++j) inverses[j] = Inverse(steps[j]);
    for (int j = 0; j < 8; ++j) {
      steps[j] = FitBlock<kBits>(x + 32 * j, inverses[j], codes + 32 * j);
    }
  }
  return true;
}

template <int kBits>
bool EncodeLowbit(const float* x, std::uint8_t* block) {
  float steps[8];
  std::int32_t fitted[256];
  std::int8_t codes[256];
  std::int8_t permuted[256];
  if (!FitSteps<kBits>(x, steps, fitted)) return false;
  for (int j = 0; j < 8; ++j) WriteHalf(block + 2 * j, steps[j]);
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<std::int8_t>(fitted[i]);
  TransposeWords(codes, permuted);
  std::uint8_t* low = block + kLowbitCodesAt;
  for (int i = 0; i < 64; ++i) {
    low[i] =
        static_cast<std::uint8_t>((permuted[i] & 3) | ((permuted[64 + i] & 3) << 2) |
                                  ((permuted[128 + i] & 3) << 4) | ((permuted[192 + i] & 3) << 6));
  }
  if constexpr (kBits == 3) {
    std::uint8_t* high = block + kLowbit3HighBitsAt;
    std::memset(high, 0, 32);
    for (int v = 0; v < 8; ++v) {
      for (int i = 0; i < 32; ++i) {
        high[i] = static_cast<std::uint8_t>(high[i] | ((permuted[32 * v + i] >> 2) << v));
      }
    }
  }
  return true;
}

inline bool EncodeQ4_0Superblock(const float* x, std::uint8_t* superblock) {
  std::uint8_t blocks[kSuperblockBytes];
  for (int j = 0; j < 8; ++j) {
    if (!EncodeSigned<4>(x + 32 * j, blocks + 18 * j)) return false;
  }
  PackQ4_0Superblock(blocks, superblock);
  return true;
}

template <bool (*kEncode)(const float*, std::uint8_t*), std::int64_t kWeights, std::int64_t kBytes>
bool EncodeBlockRow(const float* x, std::int64_t columns, std::uint8_t* row) {
  for (std::int64_t at = 0; at < columns; at += kWeights, row += kBytes) {
    if (!kEncode(x + at, row)) return false;
  }
  return true;
}

/// The loss of n numbers in f32: sums of (decoded - given)^2 and of given^2. Blocks of 256 are
/// added in sixteen lanes, and the lanes of a block in double.
void SquaredLoss(const float* given, const float* decoded, std::int64_t n, double* error,
                 double* sum) {
  constexpr std::int64_t kBlock = 256;
  *error = 0.0;
  *sum = 0.0;
  for (std::int64_t block = 0; block < n; block += kBlock) {
    const std::int64_t end = n - block < kBlock ? n : block + kBlock;
    Lanes errors[16 / kWidth] = {};
    Lanes sums[16 / kWidth] = {};
    std::int64_t i = block;
    for (; i + 16 <= end; i += 16) {
      for (int part = 0; part < 16 / kWidth; ++part) {
        const Lanes number = LanesAt(given + i + part * kWidth);
        const Lanes off = LanesAt(decoded + i + part * kWidth) - number;
        errors[part] += off * off;
        sums[part] += number * number;
      }
    }
    float lanes[2][16];
    std::memcpy(lanes[0], errors, sizeof errors);
    std::memcpy(lanes[1], sums, sizeof sums);
    for (int lane = 0; i < end; ++i, ++lane) {
      const float off = decoded[i] - given[i];
      lanes[0][lane] += off * off;
      lanes[1][lane] += given[i] * given[i];
    }
    for (const float lane : lanes[0]) *error += static_cast<double>(lane);
    for (const float lane : lanes[1]) *sum += static_cast<double>(lane);
  }
}

bool EncodeF32Row(const float* x, std::int64_t columns, std::uint8_t* row) {
  std::memcpy(row, x, static_cast<std::size_t>(columns) * sizeof(float));
  return true;
}

/// To the nearest, ties to even; NaN stays NaN.
bool EncodeBF16Row(const float* x, std::int64_t columns, std::uint8_t* row) {
  for (std::int64_t i = 0; i < columns; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x40;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    const auto half = static_cast<std::uint16_t>(is_nan ? quiet : rounded);
    std::memcpy(row + 2 * i, &half, sizeof half);
  }
  return true;
}

bool EncodeF16Row(const float* x, std::int64_t columns, std::uint8_t* row) {
  std::int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) StoreF16(row + 2 * i, Load(x + i));
  for (; i < columns; ++i) WriteHalf(row + 2 * i, x[i]);
  return true;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
