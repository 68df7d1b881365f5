// Plain C++ primitives on pairs of 32-weight blocks, the unit of all int8 dot products.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/portable/simd.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// 64 weights (two blocks) as small integers.
struct Pair {
  std::int8_t value[64];
};
using Alpha = Scale8;                  ///< scale products of the eight blocks of a group
constexpr std::int32_t kInt8Bias = 0;  ///< what LoadPairI8 adds to signed weights

/// Running sums of a row, kept apart by block parity.
struct PairSum {
  float even = 0.0F;
  float odd = 0.0F;
};
inline float Total(const PairSum& sum) { return sum.even + sum.odd; }
inline Alpha MakeAlpha(const Scale8& scales) { return scales; }

/// Blocks of 16 bytes: low nibbles are weights 0-15, high nibbles 16-31.
inline Pair NibblePair16(const std::uint8_t* first, const std::uint8_t* second) {
  Pair pair;
  for (int i = 0; i < 16; ++i) {
    pair.value[i] = static_cast<std::int8_t>(first[i] & 15);
    pair.value[16 + i] = static_cast<std::int8_t>(first[i] >> 4);
    pair.value[32 + i] = static_cast<std::int8_t>(second[i] & 15);
    pair.value[48 + i] = static_cast<std::int8_t>(second[i] >> 4);
  }
  return pair;
}

/// The values of MXFP4's codes.
constexpr std::int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
/// NibblePair16 for codes of MXFP4.
inline Pair Fp4Pair16(const std::uint8_t* first, const std::uint8_t* second) {
  Pair pair = NibblePair16(first, second);
  for (std::int8_t& value : pair.value) value = kFp4Values[value];
  return pair;
}

/// 32 bytes: low nibbles are the first block, high nibbles the second.
inline Pair NibblePair32(const std::uint8_t* p) {
  Pair pair;
  for (int i = 0; i < 32; ++i) {
    pair.value[i] = static_cast<std::int8_t>(p[i] & 15);
    pair.value[32 + i] = static_cast<std::int8_t>(p[i] >> 4);
  }
  return pair;
}

/// Adds 16 to weight i of each block whose bit i is set.
inline Pair AddHighBits(Pair pair, std::uint32_t first, std::uint32_t second) {
  for (int i = 0; i < 32; ++i) {
    pair.value[i] = static_cast<std::int8_t>(pair.value[i] | (((first >> i) & 1U) << 4));
    pair.value[32 + i] = static_cast<std::int8_t>(pair.value[32 + i] | (((second >> i) & 1U) << 4));
  }
  return pair;
}

/// Q5_K: bit 2 * index of byte i is the fifth bit of the first block's weight i, bit
/// 2 * index + 1 the second block's.
inline Pair AddHighBitsK(Pair pair, const std::uint8_t* high, int index) {
  for (int i = 0; i < 32; ++i) {
    const int bits = high[i] >> (2 * index);
    pair.value[i] = static_cast<std::int8_t>(pair.value[i] | ((bits & 1) << 4));
    pair.value[32 + i] = static_cast<std::int8_t>(pair.value[32 + i] | ((bits & 2) << 3));
  }
  return pair;
}

inline Pair LoadPairI8(const std::uint8_t* first, const std::uint8_t* second) {
  Pair pair;
  std::memcpy(pair.value, first, 32);
  std::memcpy(pair.value + 32, second, 32);
  return pair;
}

/// Q6_K, one half (128 weights): low: u8[64], high: u8[32]; `upper` chooses blocks 2, 3 over 0, 1.
inline Pair SixBitPair(const std::uint8_t* low, const std::uint8_t* high, bool upper) {
  const int shift = upper ? 4 : 0;
  Pair pair;
  for (int i = 0; i < 32; ++i) {
    const int bits = high[i] >> shift;
    pair.value[i] = static_cast<std::int8_t>(((low[i] >> shift) & 15) | ((bits & 3) << 4));
    pair.value[32 + i] =
        static_cast<std::int8_t>(((low[32 + i] >> shift) & 15) | ((bits & 12) << 2));
  }
  return pair;
}

/// out[i] = weight i - offset.
inline void StorePair(std::int8_t* out, const Pair& pair, std::int32_t offset) {
  for (int i = 0; i < 64; ++i) out[i] = static_cast<std::int8_t>(pair.value[i] - offset);
}

inline std::int32_t IntegerDot(const std::int8_t* w, const std::int8_t* x, int n) {
  std::int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += w[i] * x[i];
  return sum;
}

/// Adds alpha[2 * index + h] * (block h of the pair . x) for h = 0, 1.
inline void DotUnsigned(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                        int index) {
  sum.even += alpha.lane[2 * index] * static_cast<float>(IntegerDot(w.value, x, 32));
  sum.odd += alpha.lane[2 * index + 1] * static_cast<float>(IntegerDot(w.value + 32, x + 32, 32));
}
inline void DotSigned(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                      int index) {
  DotUnsigned(sum, w, x, alpha, index);
}

/// Q6_K's sixteen signed scales, one per 16 weights.
using SixBitScales = const std::int8_t*;
inline SixBitScales LoadSixBitScales(const std::uint8_t* p) {
  return reinterpret_cast<const std::int8_t*>(p);
}
using SixBitSum = PairSum;
using SixBitAlpha = Alpha;
inline SixBitAlpha MakeSixBitAlpha(SixBitScales, const Scale8& alpha) { return MakeAlpha(alpha); }
/// DotUnsigned for weights value - 32, with the integer scale of each 16 weights applied.
inline void DotSixBit(PairSum& sum, const Pair& w, const std::int8_t* x, const Alpha& alpha,
                      SixBitScales scales, int index) {
  std::int32_t total[2] = {0, 0};
  for (int part = 0; part < 4; ++part) {
    std::int32_t dot = 0;
    for (int i = 16 * part; i < 16 * part + 16; ++i) dot += (w.value[i] - 32) * x[i];
    total[part / 2] += dot * scales[4 * index + part];
  }
  sum.even += alpha.lane[2 * index] * static_cast<float>(total[0]);
  sum.odd += alpha.lane[2 * index + 1] * static_cast<float>(total[1]);
}

/// The 256 codes of a superblock, in the order of permuted activations.
struct Codes {
  std::uint8_t code[256];
};
/// 128 bytes of nibbles.
inline Codes LoadCodes4(const std::uint8_t* p) {
  Codes codes;
  for (int i = 0; i < 128; ++i) {
    codes.code[i] = p[i] & 15;
    codes.code[128 + i] = static_cast<std::uint8_t>(p[i] >> 4);
  }
  return codes;
}
/// lowbit2: 64 bytes of four codes each.
inline Codes LoadCodes2(const std::uint8_t* p) {
  Codes codes;
  for (int part = 0; part < 4; ++part) {
    for (int i = 0; i < 64; ++i) {
      codes.code[64 * part + i] = static_cast<std::uint8_t>((p[i] >> (2 * part)) & 3);
    }
  }
  return codes;
}
/// Bit v of high[i] becomes bit kPlace of code 32 v + i.
template <int kPlace>
inline void AddBitPlanes(Codes& codes, const std::uint8_t* high) {
  for (int v = 0; v < 8; ++v) {
    for (int i = 0; i < 32; ++i) {
      std::uint8_t& code = codes.code[32 * v + i];
      code = static_cast<std::uint8_t>(code | (((high[i] >> v) & 1) << kPlace));
    }
  }
}
/// Nibbles, and 64 bytes of the two bits above them, in the order of LoadCodes2.
inline Codes LoadCodes6(const std::uint8_t* low, const std::uint8_t* high) {
  Codes codes = LoadCodes4(low);
  const Codes bits = LoadCodes2(high);
  for (int i = 0; i < 256; ++i) {
    codes.code[i] = static_cast<std::uint8_t>(codes.code[i] | (bits.code[i] << 4));
  }
  return codes;
}
/// Signed bytes plus kInt8Bias.
inline Codes LoadCodes8(const std::uint8_t* p) {
  Codes codes;
  std::memcpy(codes.code, p, sizeof codes.code);
  return codes;
}
/// All codes minus the offset.
inline void StoreCodes(std::int8_t* out, const Codes& codes, std::int32_t offset) {
  for (int i = 0; i < 256; ++i) out[i] = static_cast<std::int8_t>(codes.code[i] - offset);
}

/// Transposes 8 x 8 words of 32 bits.
inline void TransposeWords(const std::int8_t* in, std::int8_t* out) {
  for (std::int64_t i = 0; i < 8; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) std::memcpy(out + 32 * i + 4 * j, in + 32 * j + 4 * i, 4);
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
