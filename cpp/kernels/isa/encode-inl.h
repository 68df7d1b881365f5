// Rows of f32 to block formats and to signs. Byte for byte what quant/formats/*.py write: plain
// multiplications and additions in one order, no fused ones, so every instruction set agrees.
//
// Written for the compiler's vectorizer: loops over whole blocks, sums in sixteen lanes. Needed
// when copies of weights are made at load; about a nanosecond per weight is enough.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/isa/decode-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr float kMaxHalf = 65504.0F;
/// Below this the inverse of a step overflows; such a step is zero as a half, so any code is right.
constexpr float kTinyStep = 0x1p-126F;

inline float SumLanes(const float* lanes) {
  float eight[8];
  for (int l = 0; l < 8; ++l) eight[l] = lanes[l] + lanes[l + 8];
  return ((eight[0] + eight[4]) + (eight[2] + eight[6])) +
         ((eight[1] + eight[5]) + (eight[3] + eight[7]));
}

/// Sum of term(0..31).
template <class Term>
[[gnu::always_inline]] inline float Sum32(const Term& term) {
  float lanes[16];
  for (int l = 0; l < 16; ++l) lanes[l] = term(l) + term(l + 16);
  return SumLanes(lanes);
}

inline float Inverse(float step) { return step < kTinyStep ? 0.0F : 1.0F / step; }

inline void WriteHalf(std::uint8_t* p, float value) {
  const std::uint16_t half = F32ToF16(value);
  std::memcpy(p, &half, sizeof half);
}

/// Largest magnitude of 32 numbers; false if one is not finite or beyond the limit.
inline bool LargestWithin(const float* x, float limit, float* largest) {
  *largest = std::bit_cast<float>(MaxMagnitudeBits32(x));
  return *largest <= limit;
}

inline bool EncodeQ8_0(const float* x, std::uint8_t* block) {
  float largest;
  if (!LargestWithin(x, 127 * kMaxHalf, &largest)) return false;
  const float d = largest / 127.0F;
  const float inverse = Inverse(d);
  WriteHalf(block, d);
  for (int i = 0; i < 32; ++i) {
    const float step = x[i] * inverse;
    const float size = __builtin_fabsf(step);
    const auto whole = static_cast<std::int32_t>(size);
    const std::int32_t nearest = whole + (size - static_cast<float>(whole) >= 0.5F ? 1 : 0);
    block[2 + i] = static_cast<std::uint8_t>(step < 0.0F ? -nearest : nearest);
  }
  return true;
}

inline bool EncodeQ4_0(const float* x, std::uint8_t* block) {
  float largest;
  if (!LargestWithin(x, 8 * kMaxHalf, &largest)) return false;
  int first = 0;
  while (__builtin_fabsf(x[first]) != largest) ++first;
  const float d = x[first] / -8.0F;
  const float inverse = __builtin_fabsf(d) < kTinyStep ? 0.0F : 1.0F / d;
  WriteHalf(block, d);
  std::uint8_t codes[32];
  for (int i = 0; i < 32; ++i) {
    auto code = static_cast<std::int32_t>(x[i] * inverse + 8.5F);
    code = code > 15 ? 15 : code;
    codes[i] = static_cast<std::uint8_t>(code < 0 ? 0 : code);
  }
  for (int i = 0; i < 16; ++i) {
    block[2 + i] = static_cast<std::uint8_t>(codes[i] | (codes[16 + i] << 4));
  }
  return true;
}

/// The step and codes of 32 numbers, see quant/formats/_lowbit.py; false if one is too large.
template <int kBits>
inline bool FitBlock(const float* x, float* step, std::uint8_t* codes) {
  constexpr auto kLastCode = static_cast<float>((1 << kBits) - 1);
  constexpr auto kMiddle = static_cast<float>(1 << (kBits - 1));
  float largest;
  if (!LargestWithin(x, kMaxHalf / 2, &largest)) return false;
  const float mean_square = Sum32([&](int i) { return x[i] * x[i]; }) / 32.0F;
  *step = __builtin_sqrtf(mean_square) * (kBits == 2 ? kLowbit2Step : kLowbit3Step);
  float centred[32];
  for (std::int32_t fit = 0; fit < kLowbitFits; ++fit) {
    const float inverse = Inverse(*step);
    for (int i = 0; i < 32; ++i) {
      float place = x[i] * inverse + kMiddle;
      place = place < 0.0F ? 0.0F : place;
      place = place > kLastCode ? kLastCode : place;
      const auto code = static_cast<std::int32_t>(place);
      codes[i] = static_cast<std::uint8_t>(code);
      centred[i] = static_cast<float>(code) - kLastCode / 2;
    }
    *step = Sum32([&](int i) { return x[i] * centred[i]; }) /
            Sum32([&](int i) { return centred[i] * centred[i]; });
  }
  return true;
}

template <int kBits>
bool EncodeLowbit(const float* x, std::uint8_t* block) {
  std::int8_t codes[256];
  std::int8_t permuted[256];
  for (int j = 0; j < 8; ++j) {
    float step;
    auto* of_block = reinterpret_cast<std::uint8_t*>(codes + 32 * j);
    if (!FitBlock<kBits>(x + 32 * j, &step, of_block)) return false;
    WriteHalf(block + 2 * j, step);
  }
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

/// Bits of flags (bytes of 0 or 1) 0..7.
inline std::uint8_t PackFlags(const std::uint8_t* flags) {
  std::uint64_t bytes;
  std::memcpy(&bytes, flags, sizeof bytes);
  return static_cast<std::uint8_t>((bytes * 0x0102040810204080ULL) >> 56);
}

/// Mean of 16 lanes of magnitudes over x[0..n), not counting the zeros at its end.
inline float MeanOfLanes(const float* lanes, const float* x, std::int64_t n) {
  while (n > 0 && x[n - 1] == 0.0F) --n;
  return n == 0 ? 0.0F : SumLanes(lanes) / static_cast<float>(n);
}

bool EncodeSign(const float* x, std::uint8_t* block) {
  float lanes[16] = {};
  std::uint8_t flags[32];
  for (int b = 0; b < 8; ++b) {
    const float* part = x + 32 * b;
    float largest;
    if (!LargestWithin(part, kMaxHalf, &largest)) return false;
    for (int l = 0; l < 16; ++l) lanes[l] += __builtin_fabsf(part[l]);
    for (int l = 0; l < 16; ++l) lanes[l] += __builtin_fabsf(part[16 + l]);
    for (int i = 0; i < 32; ++i) {
      flags[i] = static_cast<std::uint8_t>((part[i] < 0.0F) | ((part[i] == 0.0F) & (i & 1)));
    }
    for (int i = 0; i < 4; ++i) block[4 * b + i] = PackFlags(flags + 8 * i);
  }
  WriteHalf(block + kSignScaleAt, MeanOfLanes(lanes, x, 256));
  return true;
}

/// Sign bits of activations; the layout of kernels/kernel_table.h's `binarize`.
float Binarize(const float* x, std::int64_t n, std::uint64_t* bits) {
  float lanes[16] = {};
  std::uint8_t flags[64];
  for (std::int64_t at = 0; at < n; at += 64) {
    for (int i = 0; i < 64; ++i) flags[i] = static_cast<std::uint8_t>(x[at + i] < 0.0F);
    std::uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= std::uint64_t{PackFlags(flags + 8 * i)} << (8 * i);
    bits[at / 64] = word;
    for (int i = 0; i < 64; i += 16) {
      for (int l = 0; l < 16; ++l) lanes[l] += __builtin_fabsf(x[at + i + l]);
    }
  }
  return MeanOfLanes(lanes, x, n);
}

inline bool EncodeQ4_0Superblock(const float* x, std::uint8_t* superblock) {
  std::uint8_t blocks[kSuperblockBytes];
  for (int j = 0; j < 8; ++j) {
    if (!EncodeQ4_0(x + 32 * j, blocks + 18 * j)) return false;
  }
  PackSuperblock(blocks, superblock);
  return true;
}

template <bool (*kEncode)(const float*, std::uint8_t*), std::int64_t kWeights, std::int64_t kBytes>
bool EncodeBlockRow(const float* x, std::int64_t columns, std::uint8_t* row) {
  for (std::int64_t at = 0; at < columns; at += kWeights, row += kBytes) {
    if (!kEncode(x + at, row)) return false;
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
