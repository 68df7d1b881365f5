// The block formats of 32 weights as ggml's reference quantizer writes them: the step follows from
// the block's extreme numbers, nothing is searched.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/lanes-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Below this the inverse of a step overflows; such a step is zero as a half, so any code is right.
constexpr float kTinyStep = 0x1p-126F;

inline float Inverse(float step) { return __builtin_fabsf(step) < kTinyStep ? 0.0F : 1.0F / step; }

/// The lower four bits of 32 codes: those of i and 16 + i share a byte.
inline void WriteNibbles(const std::uint8_t* codes, std::uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::uint8_t>((codes[i] & 15) | (codes[16 + i] << 4));
  }
}

/// The fifth bits of eight codes: the product brings them together in its highest byte.
inline std::uint8_t FifthBits(const std::uint8_t* codes) {
  std::uint64_t eight;
  std::memcpy(&eight, codes, sizeof eight);
  return static_cast<std::uint8_t>((((eight >> 4) & 0x0101010101010101U) * 0x0102040810204080U) >>
                                   56);
}

/// The codes of 32 numbers of 4 or 5 bits; those of 5 have their fifth bits in front.
template <int kBits>
inline void WriteCodes(const std::uint8_t* codes, std::uint8_t* out) {
  if constexpr (kBits == 5) {
    for (int byte = 0; byte < 4; ++byte) out[byte] = FifthBits(codes + 8 * byte);
    out += 4;
  }
  WriteNibbles(codes, out);
}

/// The whole part of (x - base) * inverse + bias, which no code exceeds.
template <int kBits>
inline void TruncatedCodes(const float* x, float base, float inverse, float bias,
                           std::uint8_t* codes) {
  constexpr std::int32_t kLast = (1 << kBits) - 1;
  for (int i = 0; i < 32; ++i) {
    auto code = static_cast<std::int32_t>((x[i] - base) * inverse + bias);
    code = code > kLast ? kLast : code;
    codes[i] = static_cast<std::uint8_t>(code < 0 ? 0 : code);
  }
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

/// The first of 32 numbers that is one of these two.
inline float FirstOf(const float* x, float one, float other) {
  int first = 0;
  while (x[first] != one && x[first] != other) ++first;
  return x[first];
}

/// Smallest and largest of 32 numbers; of equal zeros, the first one.
inline void Extremes(const float* x, float* smallest, float* largest) {
  Lanes low = LanesAt(x);
  Lanes high = low;
  for (int i = 1; i < kVectors; ++i) {
    const Lanes values = LanesAt(x + i * kWidth);
    low = values < low ? values : low;
    high = values > high ? values : high;
  }
  Lanes4 lows[kWidth / 4];
  Lanes4 highs[kWidth / 4];
  std::memcpy(lows, &low, sizeof low);
  std::memcpy(highs, &high, sizeof high);
  for (int i = 1; i < kWidth / 4; ++i) {
    lows[0] = lows[i] < lows[0] ? lows[i] : lows[0];
    highs[0] = highs[i] > highs[0] ? highs[i] : highs[0];
  }
  *smallest = lows[0][0];
  *largest = highs[0][0];
  for (int i = 1; i < 4; ++i) {
    *smallest = lows[0][i] < *smallest ? lows[0][i] : *smallest;
    *largest = highs[0][i] > *largest ? highs[0][i] : *largest;
  }
  if (*smallest == 0.0F) *smallest = FirstOf(x, 0.0F, 0.0F);
  if (*largest == 0.0F) *largest = FirstOf(x, 0.0F, 0.0F);
}

/// Q4_0 and Q5_0: the number of largest magnitude, the first of equals, has the lowest code.
template <int kBits>
inline bool EncodeSigned(const float* x, std::uint8_t* block) {
  constexpr auto kMiddle = static_cast<float>(1 << (kBits - 1));
  float magnitude;
  float smallest;
  float largest;
  if (!LargestWithin(x, kMiddle * kMaxHalf, &magnitude)) return false;
  Extremes(x, &smallest, &largest);
  float end = largest == magnitude ? largest : smallest;
  if (largest == -smallest) end = FirstOf(x, smallest, largest);
  const float d = end / -kMiddle;
  WriteHalf(block, d);
  std::uint8_t codes[32];
  TruncatedCodes<kBits>(x, 0.0F, Inverse(d), kMiddle + 0.5F, codes);
  WriteCodes<kBits>(codes, block + 2);
  return true;
}

/// Q4_1 and Q5_1: the codes reach from the smallest number to the largest.
template <int kBits>
inline bool EncodeOffset(const float* x, std::uint8_t* block) {
  float magnitude;
  float smallest;
  float largest;
  if (!LargestWithin(x, kMaxHalf, &magnitude)) return false;
  Extremes(x, &smallest, &largest);
  const float d = (largest - smallest) / static_cast<float>((1 << kBits) - 1);
  WriteHalf(block, d);
  WriteHalf(block + 2, smallest);
  std::uint8_t codes[32];
  TruncatedCodes<kBits>(x, smallest, Inverse(d), 0.5F, codes);
  WriteCodes<kBits>(codes, block + 4);
  return true;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
