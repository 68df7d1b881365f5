// NEON primitives on pairs of 32-weight blocks; see portable/blocks.h for each.
//
// Codes below 128 are int8 already, so one signed dot product (four bytes into each int32 lane,
// exact) serves signed and unsigned weights.
#pragma once

#include "kernels/isa/neon/simd.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Weights 16 i to 16 i + 15 of the 64 in part i.
struct Pair {
  int8x16_t part[4];
};
/// In memory, since the eight scales are used one by one.
struct Alpha {
  float lane[8];
};
constexpr std::int32_t kInt8Bias = 0;

struct PairSum {
  float32x4_t even = vdupq_n_f32(0.0F);
  float32x4_t odd = vdupq_n_f32(0.0F);
};
inline float Total(const PairSum& sum) { return vaddvq_f32(vaddq_f32(sum.even, sum.odd)); }

inline Alpha MakeAlpha(const Scale8& scales) {
  Alpha alpha;
  Store8(alpha.lane, scales);
  return alpha;
}

inline int8x16_t LowNibbles(uint8x16_t bytes) {
  return vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
}
inline int8x16_t HighNibbles(uint8x16_t bytes) { return vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4)); }
inline int8x16_t Or(int8x16_t codes, uint8x16_t bits) {
  return vorrq_s8(codes, vreinterpretq_s8_u8(bits));
}
inline int8x16_t LoadI8x16(const void* p) { return vld1q_s8(static_cast<const std::int8_t*>(p)); }

inline Pair NibblePair16(const std::uint8_t* first, const std::uint8_t* second) {
  const uint8x16_t a = vld1q_u8(first);
  const uint8x16_t b = vld1q_u8(second);
  return {{LowNibbles(a), HighNibbles(a), LowNibbles(b), HighNibbles(b)}};
}
/// The values of MXFP4's codes.
inline int8x16_t Fp4Values() {
  static constexpr std::int8_t kValues[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};
  return vld1q_s8(kValues);
}
inline int8x16_t LookUp(int8x16_t values, int8x16_t codes) {
  return vqtbl1q_s8(values, vreinterpretq_u8_s8(codes));
}
inline Pair Fp4Pair16(const std::uint8_t* first, const std::uint8_t* second) {
  Pair pair = NibblePair16(first, second);
  for (int8x16_t& part : pair.part) part = LookUp(Fp4Values(), part);
  return pair;
}
inline Pair NibblePair32(const std::uint8_t* p) {
  const uint8x16_t a = vld1q_u8(p);
  const uint8x16_t b = vld1q_u8(p + 16);
  return {{LowNibbles(a), LowNibbles(b), HighNibbles(a), HighNibbles(b)}};
}

/// 16 in byte i where bit i of the low sixteen is set.
inline uint8x16_t SpreadBits(std::uint32_t bits) {
  const uint8x16_t bytes = vcombine_u8(vdup_n_u8(static_cast<std::uint8_t>(bits)),
                                       vdup_n_u8(static_cast<std::uint8_t>(bits >> 8)));
  const uint8x16_t select = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ULL));
  return vandq_u8(vtstq_u8(bytes, select), vdupq_n_u8(16));
}
inline Pair AddHighBits(Pair pair, std::uint32_t first, std::uint32_t second) {
  return {{Or(pair.part[0], SpreadBits(first)), Or(pair.part[1], SpreadBits(first >> 16)),
           Or(pair.part[2], SpreadBits(second)), Or(pair.part[3], SpreadBits(second >> 16))}};
}
inline Pair AddHighBitsK(Pair pair, const std::uint8_t* high, int index) {
  const uint8x16_t first = vdupq_n_u8(static_cast<std::uint8_t>(1 << (2 * index)));
  const uint8x16_t second = vdupq_n_u8(static_cast<std::uint8_t>(2 << (2 * index)));
  const uint8x16_t sixteen = vdupq_n_u8(16);
  const uint8x16_t a = vld1q_u8(high);
  const uint8x16_t b = vld1q_u8(high + 16);
  return {{Or(pair.part[0], vandq_u8(vtstq_u8(a, first), sixteen)),
           Or(pair.part[1], vandq_u8(vtstq_u8(b, first), sixteen)),
           Or(pair.part[2], vandq_u8(vtstq_u8(a, second), sixteen)),
           Or(pair.part[3], vandq_u8(vtstq_u8(b, second), sixteen))}};
}
inline Pair LoadPairI8(const std::uint8_t* first, const std::uint8_t* second) {
  return {{LoadI8x16(first), LoadI8x16(first + 16), LoadI8x16(second), LoadI8x16(second + 16)}};
}
inline Pair SixBitPair(const std::uint8_t* low, const std::uint8_t* high, bool upper) {
  const uint8x16_t mask = vdupq_n_u8(48);
  Pair pair;
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t codes = vld1q_u8(low + 16 * i);
    const uint8x16_t bits = vld1q_u8(high + 16 * (i % 2));
    // Bits 0-1, 2-3 (lower blocks), 4-5, 6-7 (upper blocks) move to 4-5.
    const uint8x16_t moved = upper ? (i < 2 ? bits : vshrq_n_u8(bits, 2))
                                   : (i < 2 ? vshlq_n_u8(bits, 4) : vshlq_n_u8(bits, 2));
    pair.part[i] = Or(upper ? HighNibbles(codes) : LowNibbles(codes), vandq_u8(moved, mask));
  }
  return pair;
}

inline void StorePair(std::int8_t* out, const Pair& pair, std::int32_t offset) {
  const int8x16_t bias = vdupq_n_s8(static_cast<std::int8_t>(offset));
  for (int i = 0; i < 4; ++i) vst1q_s8(out + 16 * i, vsubq_s8(pair.part[i], bias));
}

inline int32x4_t Dot16(int32x4_t sum, int8x16_t w, const std::int8_t* x) {
  return vdotq_s32(sum, w, vld1q_s8(x));
}
inline void DotUnsigned(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                        int index) {
  const int32x4_t zero = vdupq_n_s32(0);
  const int32x4_t first = Dot16(Dot16(zero, w.part[0], x), w.part[1], x + 16);
  const int32x4_t second = Dot16(Dot16(zero, w.part[2], x + 32), w.part[3], x + 48);
  sum.even = vfmaq_n_f32(sum.even, vcvtq_f32_s32(first), alpha.lane[2 * index]);
  sum.odd = vfmaq_n_f32(sum.odd, vcvtq_f32_s32(second), alpha.lane[2 * index + 1]);
}
inline void DotSigned(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                      int index) {
  DotUnsigned(sum, w, x, alpha, index);
}

using SixBitScales = const std::uint8_t*;
inline SixBitScales LoadSixBitScales(const std::uint8_t* p) { return p; }
using SixBitSum = PairSum;
using SixBitAlpha = Alpha;
inline SixBitAlpha MakeSixBitAlpha(SixBitScales, const Scale8& alpha) { return MakeAlpha(alpha); }
inline void DotSixBit(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                      SixBitScales scales, int index) {
  const int8x16_t offset = vdupq_n_s8(32);
  int32x4_t dots[4];
  for (int i = 0; i < 4; ++i) {
    const auto scale = static_cast<std::int8_t>(scales[4 * index + i]);
    const int32x4_t dot = Dot16(vdupq_n_s32(0), vsubq_s8(w.part[i], offset), x + 16 * i);
    dots[i] = vmulq_n_s32(dot, scale);
  }
  const float32x4_t first = vcvtq_f32_s32(vaddq_s32(dots[0], dots[1]));
  const float32x4_t second = vcvtq_f32_s32(vaddq_s32(dots[2], dots[3]));
  sum.even = vfmaq_n_f32(sum.even, first, alpha.lane[2 * index]);
  sum.odd = vfmaq_n_f32(sum.odd, second, alpha.lane[2 * index + 1]);
}

/// Codes in the order of permuted activations; each 32-byte vector in two parts, blocks 0-3 and
/// 4-7.
struct Codes {
  int8x16_t part[16];
};
inline Codes LoadCodes4(const std::uint8_t* p) {
  Codes codes;
  for (int i = 0; i < 8; ++i) {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    codes.part[i] = LowNibbles(bytes);
    codes.part[8 + i] = HighNibbles(bytes);
  }
  return codes;
}
inline Codes LoadCodes2(const std::uint8_t* p) {
  const uint8x16_t mask = vdupq_n_u8(3);
  Codes codes;
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    codes.part[i] = vreinterpretq_s8_u8(vandq_u8(bytes, mask));
    codes.part[4 + i] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(bytes, 2), mask));
    codes.part[8 + i] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(bytes, 4), mask));
    codes.part[12 + i] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 6));
  }
  return codes;
}
template <int kPlace>
inline void AddBitPlanes(Codes& codes, const std::uint8_t* high) {
  const uint8x16_t mask = vdupq_n_u8(1 << kPlace);
  for (int h = 0; h < 2; ++h) {
    const uint8x16_t bits = vld1q_u8(high + 16 * h);
    for (int v = 0; v < 8; ++v) {
      // A negative count shifts right.
      const uint8x16_t moved = vshlq_u8(bits, vdupq_n_s8(static_cast<std::int8_t>(kPlace - v)));
      codes.part[2 * v + h] = Or(codes.part[2 * v + h], vandq_u8(moved, mask));
    }
  }
}
inline Codes LoadCodes6(const std::uint8_t* low, const std::uint8_t* high) {
  const uint8x16_t mask = vdupq_n_u8(0x30);
  Codes codes = LoadCodes4(low);
  for (int i = 0; i < 16; ++i) {
    const uint8x16_t bits = vld1q_u8(high + 16 * (i % 4));
    const auto count = static_cast<std::int8_t>(4 - i / 4 * 2);
    codes.part[i] = Or(codes.part[i], vandq_u8(vshlq_u8(bits, vdupq_n_s8(count)), mask));
  }
  return codes;
}
inline Codes LoadCodes8(const std::uint8_t* p) {
  Codes codes;
  for (int i = 0; i < 16; ++i) codes.part[i] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * i));
  return codes;
}
inline void StoreCodes(std::int8_t* out, const Codes& codes, std::int32_t offset) {
  const int8x16_t bias = vdupq_n_s8(static_cast<std::int8_t>(offset));
  for (int i = 0; i < 16; ++i) vst1q_s8(out + 16 * i, vsubq_s8(codes.part[i], bias));
}

/// Transposes 8 x 8 words of 32 bits.
inline void TransposeWords(const std::int8_t* in, std::int8_t* out) {
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) std::memcpy(out + 32 * i + 4 * j, in + 32 * j + 4 * i, 4);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
