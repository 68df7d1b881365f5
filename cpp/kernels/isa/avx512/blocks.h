// AVX-512 VNNI primitives on pairs of 32-weight blocks; see portable/blocks.h for each.
//
// vpdpbusd multiplies unsigned weights with signed activations and adds four products at a time
// into int32 lanes, eight lanes per block, exactly. Signed weights are biased by 128 to become
// unsigned.
#pragma once

#include "kernels/isa/avx512/vectors.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// One vector per block: nibbles of 32 bytes split with one shift for both.
struct Pair {
  __m256i first, second;
};
/// Q6_K's pairs: four scales each.
using WidePair = __m512i;
using Alpha = __m256;
constexpr std::int32_t kInt8Bias = 128;

/// Eight lanes of the even blocks, and eight of the odd ones.
struct PairSum {
  __m512 lanes = _mm512_setzero_ps();
};
inline float Total(const PairSum& sum) { return Sum(sum.lanes); }

inline Alpha MakeAlpha(Scale8 scales) { return scales; }

inline __m256i SplitNibbles16(const std::uint8_t* p) {
  const __m128i bytes = LoadBytes16(p);
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}
inline Pair NibblePair16(const std::uint8_t* first, const std::uint8_t* second) {
  return {SplitNibbles16(first), SplitNibbles16(second)};
}
inline Pair Fp4Pair16(const std::uint8_t* first, const std::uint8_t* second) {
  const __m256i values = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  return {_mm256_shuffle_epi8(values, SplitNibbles16(first)),
          _mm256_shuffle_epi8(values, SplitNibbles16(second))};
}
inline Pair NibblePair32(const std::uint8_t* p) {
  const __m256i bytes = LoadBytes32(p);
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask)};
}
inline Pair AddHighBits(Pair pair, std::uint32_t first, std::uint32_t second) {
  return {_mm256_or_si256(pair.first, _mm256_maskz_set1_epi8(first, 16)),
          _mm256_or_si256(pair.second, _mm256_maskz_set1_epi8(second, 16))};
}
inline Pair AddHighBitsK(Pair pair, const std::uint8_t* high, int index) {
  const __m256i mask = _mm256_set1_epi8(16);
  const __m256i bits = LoadBytes32(high);
  // Bits cross bytes in 16-bit shifts, but never into the masked position.
  const __m256i first =
      index < 2 ? _mm256_slli_epi16(bits, 4 - 2 * index) : _mm256_srli_epi16(bits, 2 * index - 4);
  const __m256i second =
      index < 2 ? _mm256_slli_epi16(bits, 3 - 2 * index) : _mm256_srli_epi16(bits, 2 * index - 3);
  return {_mm256_or_si256(pair.first, _mm256_and_si256(first, mask)),
          _mm256_or_si256(pair.second, _mm256_and_si256(second, mask))};
}
inline Pair LoadPairI8(const std::uint8_t* first, const std::uint8_t* second) {
  const __m256i bias = _mm256_set1_epi8(static_cast<char>(kInt8Bias));
  return {_mm256_xor_si256(LoadBytes32(first), bias), _mm256_xor_si256(LoadBytes32(second), bias)};
}

/// Shifts the 16-bit words of each half by its own count.
template <int kFirst, int kSecond>
inline __m512i ShiftHalves(__m512i v) {
  const __m512i counts =
      _mm512_inserti64x4(_mm512_set1_epi16(kFirst), _mm256_set1_epi16(kSecond), 1);
  return _mm512_srlv_epi16(v, counts);
}
inline WidePair SixBitPair(const std::uint8_t* low, const std::uint8_t* high, bool upper) {
  __m512i codes = _mm512_loadu_si512(low);
  __m512i bits = _mm512_broadcast_i64x4(LoadBytes32(high));
  if (upper) {
    codes = _mm512_srli_epi16(codes, 4);
    bits = ShiftHalves<4, 6>(bits);
  } else {
    bits = ShiftHalves<0, 2>(bits);
  }
  bits = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi8(3)), 4);
  return _mm512_or_si512(_mm512_and_si512(codes, _mm512_set1_epi8(15)), bits);
}

inline void StorePair(std::int8_t* out, const Pair& pair, std::int32_t offset) {
  const __m256i bias = _mm256_set1_epi8(static_cast<char>(offset));
  StoreBytes32(out, _mm256_sub_epi8(pair.first, bias));
  StoreBytes32(out + 32, _mm256_sub_epi8(pair.second, bias));
}
inline void StorePair(std::int8_t* out, WidePair pair, std::int32_t offset) {
  _mm512_storeu_si512(out, _mm512_sub_epi8(pair, _mm512_set1_epi8(static_cast<char>(offset))));
}

inline void DotUnsigned(PairSum& sum, const Pair& w, const std::int8_t* x, Alpha alpha, int index) {
  const __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(w.first), w.second, 1);
  const __m512i dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, _mm512_loadu_si512(x));
  const __m512i blocks =
      _mm512_inserti64x4(_mm512_set1_epi32(2 * index), _mm256_set1_epi32(2 * index + 1), 1);
  const __m512 scales = _mm512_permutexvar_ps(blocks, _mm512_castps256_ps512(alpha));
  sum.lanes = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, sum.lanes);
}
inline void DotSigned(PairSum& sum, const Pair& w, const std::int8_t* x, Alpha alpha, int index) {
  DotUnsigned(sum, w, x, alpha, index);
}

/// Sums of Q6_K.
struct SixBitSum {
  __m512 even = _mm512_setzero_ps();  ///< pairs 0 and 2 of a group
  __m512 odd = _mm512_setzero_ps();   ///< pairs 1 and 3
};
inline float Total(const SixBitSum& sum) { return Sum(_mm512_add_ps(sum.even, sum.odd)); }

using SixBitScales = __m512;  ///< sixteen scales as f32
using SixBitAlpha = __m512;   ///< sixteen scales times those of x
inline SixBitScales LoadSixBitScales(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes16(p)));
}
inline SixBitAlpha MakeSixBitAlpha(SixBitScales scales, Scale8 alpha) {
  const __m512i by_block = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_mul_ps(scales, _mm512_permutexvar_ps(by_block, _mm512_castps256_ps512(alpha)));
}
/// A second product with the same activations removes the offset 32.
inline void DotSixBit(SixBitSum& sum, WidePair w, const std::int8_t* x, SixBitAlpha alpha,
                      SixBitScales, int index) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i values = _mm512_loadu_si512(x);
  const __m512i offset = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(32), values);
  const __m512i dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, w, values), offset);
  const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i lanes = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * index));
  __m512& half = index % 2 == 0 ? sum.even : sum.odd;
  half = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(lanes, alpha), half);
}

/// Four vectors of codes in the order of permuted activations.
struct Codes {
  __m512i vector[4];
};
inline Codes LoadCodes4(const std::uint8_t* p) {
  const __m512i mask = _mm512_set1_epi8(15);
  Codes codes;
  for (int v = 0; v < 2; ++v) {
    const __m512i bytes = _mm512_loadu_si512(p + 64 * v);
    codes.vector[v] = _mm512_and_si512(bytes, mask);
    codes.vector[2 + v] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  }
  return codes;
}
inline Codes LoadCodes2(const std::uint8_t* p) {
  const __m512i mask = _mm512_set1_epi8(3);
  const __m512i bytes = _mm512_loadu_si512(p);
  return {{_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16(bytes, 2), mask),
           _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask),
           _mm512_and_si512(_mm512_srli_epi16(bytes, 6), mask)}};
}
template <int kPlace>
inline void AddBitPlanes(Codes& codes, const std::uint8_t* high) {
  // Bit v of a byte belongs to the vector of 32 with that number: the halves of each of our vectors
  // are one bit apart. Shifted so that the wanted bit is always at the place (bits of the
  // neighbouring byte never reach it).
  const __m256i bits = LoadBytes32(high);
  const __m512i both =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_slli_epi16(bits, 1)), bits, 1);
  const __m512i mask = _mm512_set1_epi8(1 << kPlace);
  for (int v = 0; v < 4; ++v) {
    const int bit = 2 * v + 1;
    const __m512i moved = bit < kPlace ? _mm512_slli_epi16(both, kPlace - bit)
                                       : _mm512_srli_epi16(both, bit - kPlace);
    codes.vector[v] = _mm512_or_si512(codes.vector[v], _mm512_and_si512(moved, mask));
  }
}
inline Codes LoadCodes6(const std::uint8_t* low, const std::uint8_t* high) {
  const __m512i mask = _mm512_set1_epi8(0x30);
  const __m512i bits = _mm512_loadu_si512(high);
  Codes codes = LoadCodes4(low);
  for (int v = 0; v < 4; ++v) {
    const __m512i moved =
        v < 2 ? _mm512_slli_epi16(bits, 4 - 2 * v) : _mm512_srli_epi16(bits, 2 * v - 4);
    codes.vector[v] = _mm512_or_si512(codes.vector[v], _mm512_and_si512(moved, mask));
  }
  return codes;
}
inline Codes LoadCodes8(const std::uint8_t* p) {
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kInt8Bias));
  Codes codes;
  for (int v = 0; v < 4; ++v) {
    codes.vector[v] = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * v), bias);
  }
  return codes;
}
inline void StoreCodes(std::int8_t* out, const Codes& codes, std::int32_t offset) {
  for (int v = 0; v < 4; ++v) StorePair(out + 64 * v, codes.vector[v], offset);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
