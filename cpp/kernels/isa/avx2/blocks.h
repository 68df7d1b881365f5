// AVX2 primitives on pairs of 32-weight blocks; see portable/blocks.h for each.
//
// Products of unsigned weights (at most 63) with int8 activations (at most 127 in magnitude) add up
// in pairs to at most 16002, within int16; signed weights (Q8_0) move their sign to the activation
// first, 2 * 128 * 127 = 32512 at most.
#pragma once

#include "kernels/isa/avx2/vectors.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

struct Pair {
  __m256i first, second;
};
using Alpha = __m256;
constexpr std::int32_t kInt8Bias = 0;

struct PairSum {
  __m256 even = _mm256_setzero_ps();
  __m256 odd = _mm256_setzero_ps();
};
inline float Total(const PairSum& sum) { return Sum256(_mm256_add_ps(sum.even, sum.odd)); }

inline Alpha MakeAlpha(Scale8 scales) { return scales; }
/// By a permutation: writing the eight numbers to memory and loading them one by one costs more.
inline __m256 ScaleOf(Alpha alpha, int block) {
  return _mm256_permutevar8x32_ps(alpha, _mm256_set1_epi32(block));
}

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

/// 16 in byte i where bit i is set.
inline __m256i SpreadBits(std::uint32_t bits) {
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                          2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i select = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread);
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, select), select);
  return _mm256_and_si256(is_set, _mm256_set1_epi8(16));
}
inline Pair AddHighBits(Pair pair, std::uint32_t first, std::uint32_t second) {
  return {_mm256_or_si256(pair.first, SpreadBits(first)),
          _mm256_or_si256(pair.second, SpreadBits(second))};
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
  return {LoadBytes32(first), LoadBytes32(second)};
}
inline Pair SixBitPair(const std::uint8_t* low, const std::uint8_t* high, bool upper) {
  const __m256i low_mask = _mm256_set1_epi8(15);
  const __m256i high_mask = _mm256_set1_epi8(48);
  const __m256i bits = LoadBytes32(high);
  const __m256i a = LoadBytes32(low);
  const __m256i b = LoadBytes32(low + 32);
  if (upper) {
    return {_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low_mask),
                            _mm256_and_si256(bits, high_mask)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low_mask),
                            _mm256_and_si256(_mm256_srli_epi16(bits, 2), high_mask))};
  }
  return {_mm256_or_si256(_mm256_and_si256(a, low_mask),
                          _mm256_and_si256(_mm256_slli_epi16(bits, 4), high_mask)),
          _mm256_or_si256(_mm256_and_si256(b, low_mask),
                          _mm256_and_si256(_mm256_slli_epi16(bits, 2), high_mask))};
}

inline void StorePair(std::int8_t* out, const Pair& pair, std::int32_t offset) {
  const __m256i bias = _mm256_set1_epi8(static_cast<char>(offset));
  StoreBytes32(out, _mm256_sub_epi8(pair.first, bias));
  StoreBytes32(out + 32, _mm256_sub_epi8(pair.second, bias));
}

inline __m256 AddScaled(__m256 sum, __m256i products, __m256i factors, __m256 scale) {
  const __m256 dots = _mm256_cvtepi32_ps(_mm256_madd_epi16(products, factors));
  return _mm256_fmadd_ps(dots, scale, sum);
}

inline void DotUnsigned(PairSum& sum, const Pair& w, const std::int8_t* x, Alpha alpha, int index) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i first = _mm256_maddubs_epi16(w.first, LoadBytes32(x));
  const __m256i second = _mm256_maddubs_epi16(w.second, LoadBytes32(x + 32));
  sum.even = AddScaled(sum.even, first, ones, ScaleOf(alpha, 2 * index));
  sum.odd = AddScaled(sum.odd, second, ones, ScaleOf(alpha, 2 * index + 1));
}

inline __m256i SignedProducts(__m256i w, __m256i x) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
inline void DotSigned(PairSum& sum, const Pair& w, const std::int8_t* x, Alpha alpha, int index) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i first = SignedProducts(w.first, LoadBytes32(x));
  const __m256i second = SignedProducts(w.second, LoadBytes32(x + 32));
  sum.even = AddScaled(sum.even, first, ones, ScaleOf(alpha, 2 * index));
  sum.odd = AddScaled(sum.odd, second, ones, ScaleOf(alpha, 2 * index + 1));
}

using SixBitScales = __m128i;  ///< sixteen int8
inline SixBitScales LoadSixBitScales(const std::uint8_t* p) { return LoadBytes16(p); }

/// Scales 2 * block and 2 * block + 1 as int16, eight times each.
inline __m256i SpreadScales(SixBitScales scales, int block) {
  const __m128i pattern = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m128i index = _mm_add_epi8(pattern, _mm_set1_epi8(static_cast<char>(2 * block)));
  return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scales, index));
}
using SixBitSum = PairSum;
using SixBitAlpha = Alpha;
inline SixBitAlpha MakeSixBitAlpha(SixBitScales, Scale8 alpha) { return MakeAlpha(alpha); }
inline void DotSixBit(PairSum& sum, const Pair& w, const std::int8_t* x, Alpha alpha,
                      SixBitScales scales, int index) {
  const __m256i offset = _mm256_set1_epi8(32);
  const __m256i first = SignedProducts(_mm256_sub_epi8(w.first, offset), LoadBytes32(x));
  const __m256i second = SignedProducts(_mm256_sub_epi8(w.second, offset), LoadBytes32(x + 32));
  sum.even = AddScaled(sum.even, first, SpreadScales(scales, 2 * index), ScaleOf(alpha, 2 * index));
  sum.odd = AddScaled(sum.odd, second, SpreadScales(scales, 2 * index + 1),
                      ScaleOf(alpha, 2 * index + 1));
}

/// Eight vectors of codes in the order of permuted activations.
struct Codes {
  __m256i vector[8];
};
inline Codes LoadCodes4(const std::uint8_t* p) {
  const __m256i mask = _mm256_set1_epi8(15);
  Codes codes;
  for (int v = 0; v < 4; ++v) {
    const __m256i bytes = LoadBytes32(p + 32 * v);
    codes.vector[v] = _mm256_and_si256(bytes, mask);
    codes.vector[4 + v] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
  }
  return codes;
}
inline Codes LoadCodes2(const std::uint8_t* p) {
  const __m256i mask = _mm256_set1_epi8(3);
  Codes codes;
  for (int v = 0; v < 8; ++v) {
    const __m256i bytes = LoadBytes32(p + 32 * (v % 2));
    codes.vector[v] = _mm256_and_si256(_mm256_srli_epi16(bytes, v / 2 * 2), mask);
  }
  return codes;
}
template <int kPlace>
inline void AddBitPlanes(Codes& codes, const std::uint8_t* high) {
  const __m256i mask = _mm256_set1_epi8(1 << kPlace);
  const __m256i bits = LoadBytes32(high);
  for (int v = 0; v < 8; ++v) {
    const __m256i moved =
        v < kPlace ? _mm256_slli_epi16(bits, kPlace - v) : _mm256_srli_epi16(bits, v - kPlace);
    codes.vector[v] = _mm256_or_si256(codes.vector[v], _mm256_and_si256(moved, mask));
  }
}
inline Codes LoadCodes6(const std::uint8_t* low, const std::uint8_t* high) {
  const __m256i mask = _mm256_set1_epi8(0x30);
  Codes codes = LoadCodes4(low);
  for (int v = 0; v < 8; ++v) {
    const __m256i bits = LoadBytes32(high + 32 * (v % 2));
    const __m256i moved =
        v < 4 ? _mm256_slli_epi16(bits, 4 - v / 2 * 2) : _mm256_srli_epi16(bits, v / 2 * 2 - 4);
    codes.vector[v] = _mm256_or_si256(codes.vector[v], _mm256_and_si256(moved, mask));
  }
  return codes;
}
inline Codes LoadCodes8(const std::uint8_t* p) {
  Codes codes;
  for (int v = 0; v < 8; ++v) {
    codes.vector[v] = LoadBytes32(p + 32 * v);
    // Otherwise GCC copies them in halves, and vectors read from the copy wait for both.
    __asm__("" : "+x"(codes.vector[v]));
  }
  return codes;
}
inline void StoreCodes(std::int8_t* out, const Codes& codes, std::int32_t offset) {
  const __m256i bias = _mm256_set1_epi8(static_cast<char>(offset));
  for (int v = 0; v < 8; ++v) {
    StoreBytes32(out + 32 * v, _mm256_sub_epi8(codes.vector[v], bias));
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
