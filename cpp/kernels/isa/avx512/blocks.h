// AVX-512 VNNI primitives on pairs of 32-weight blocks; what each does is said in
// portable/blocks.h.
//
// vpdpbusd multiplies unsigned weights with signed activations and adds four products at a time
// into int32 lanes, eight lanes per block, exactly. Signed weights are biased by 128 to become
// unsigned.
#pragma once

#include "kernels/isa/avx512/vectors.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using Pair = __m512i;
using Alpha = __m512;  ///< the eight scales, twice
constexpr std::int32_t kInt8Bias = 128;

struct PairSum {
  __m512 even = _mm512_setzero_ps();  ///< pairs 0 and 2 of a group
  __m512 odd = _mm512_setzero_ps();   ///< pairs 1 and 3
};
inline float Total(const PairSum& sum) { return Sum(_mm512_add_ps(sum.even, sum.odd)); }

inline Alpha MakeAlpha(Scale8 scales) { return _mm512_broadcast_f32x8(scales); }

/// Shifts 16-bit words by a count per quarter: halves of one byte string become separate vectors.
template <int kFirst, int kSecond, int kThird, int kFourth>
inline __m512i ShiftQuarters(__m512i v) {
  const __m512i counts = _mm512_set_epi64(
      kFourth * 0x0001000100010001LL, kFourth * 0x0001000100010001LL, kThird * 0x0001000100010001LL,
      kThird * 0x0001000100010001LL, kSecond * 0x0001000100010001LL, kSecond * 0x0001000100010001LL,
      kFirst * 0x0001000100010001LL, kFirst * 0x0001000100010001LL);
  return _mm512_srlv_epi16(v, counts);
}

inline Pair NibblePair16(const std::uint8_t* first, const std::uint8_t* second) {
  const __m512i bytes = _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(LoadBytes16(first)),
                                                    0xFF00, LoadBytes16(second));
  return _mm512_and_si512(ShiftQuarters<0, 4, 0, 4>(bytes), _mm512_set1_epi8(15));
}
inline Pair NibblePair32(const std::uint8_t* p) {
  const __m512i bytes = _mm512_broadcast_i64x4(LoadBytes32(p));
  return _mm512_and_si512(ShiftQuarters<0, 0, 4, 4>(bytes), _mm512_set1_epi8(15));
}
inline Pair AddHighBits(Pair pair, std::uint32_t first, std::uint32_t second) {
  const __mmask64 bits = first | (static_cast<std::uint64_t>(second) << 32);
  return _mm512_or_si512(pair, _mm512_maskz_set1_epi8(bits, 16));
}
inline Pair AddHighBitsK(Pair pair, const std::uint8_t* high, int index) {
  const auto low_bit = static_cast<char>(1 << (2 * index));
  const auto high_bit = static_cast<char>(2 << (2 * index));
  const __m512i select =
      _mm512_inserti64x4(_mm512_set1_epi8(low_bit), _mm256_set1_epi8(high_bit), 1);
  const __m512i bytes = _mm512_broadcast_i64x4(LoadBytes32(high));
  return _mm512_or_si512(pair, _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bytes, select), 16));
}
inline Pair LoadPairI8(const std::uint8_t* first, const std::uint8_t* second) {
  const __m512i bytes =
      _mm512_inserti64x4(_mm512_castsi256_si512(LoadBytes32(first)), LoadBytes32(second), 1);
  return _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(kInt8Bias)));
}
inline Pair SixBitPair(const std::uint8_t* low, const std::uint8_t* high, bool upper) {
  __m512i codes = _mm512_loadu_si512(low);
  __m512i bits = _mm512_broadcast_i64x4(LoadBytes32(high));
  if (upper) {
    codes = _mm512_srli_epi16(codes, 4);
    bits = ShiftQuarters<4, 4, 6, 6>(bits);
  } else {
    bits = ShiftQuarters<0, 0, 2, 2>(bits);
  }
  bits = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi8(3)), 4);
  return _mm512_or_si512(_mm512_and_si512(codes, _mm512_set1_epi8(15)), bits);
}

inline void StorePair(std::int8_t* out, Pair pair, std::int32_t offset) {
  _mm512_storeu_si512(out, _mm512_sub_epi8(pair, _mm512_set1_epi8(static_cast<char>(offset))));
}

/// Adds dots * the scales in lanes `first` (eight times) and `second` of alpha.
inline void AddPair(PairSum& sum, __m512i dots, __m512 scales, int index) {
  __m512& half = index % 2 == 0 ? sum.even : sum.odd;
  half = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, half);
}

inline void DotUnsigned(PairSum& sum, Pair w, const std::int8_t* x, Alpha alpha, int index) {
  const __m512i dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512(x));
  const __m512i lanes =
      _mm512_inserti64x4(_mm512_set1_epi32(2 * index), _mm256_set1_epi32(2 * index + 1), 1);
  AddPair(sum, dots, _mm512_permutexvar_ps(lanes, alpha), index);
}
inline void DotSigned(PairSum& sum, Pair w, const std::int8_t* x, Alpha alpha, int index) {
  DotUnsigned(sum, w, x, alpha, index);
}

using SixBitScales = __m512;  ///< sixteen scales as f32
inline SixBitScales LoadSixBitScales(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes16(p)));
}
/// The offset 32 leaves through a second product with the same activations.
inline void DotSixBit(PairSum& sum, Pair w, const std::int8_t* x, Alpha alpha, SixBitScales scales,
                      int index) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i values = _mm512_loadu_si512(x);
  const __m512i offset = _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(32), values);
  const __m512i dots = _mm512_sub_epi32(_mm512_dpbusd_epi32(zero, w, values), offset);
  const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i by_sixteen = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * index));
  const __m512i by_block =
      _mm512_add_epi32(_mm512_srli_epi32(quarter, 1), _mm512_set1_epi32(2 * index));
  AddPair(sum, dots,
          _mm512_mul_ps(_mm512_permutexvar_ps(by_sixteen, scales),
                        _mm512_permutexvar_ps(by_block, alpha)),
          index);
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
inline Codes LoadCodes3(const std::uint8_t* low, const std::uint8_t* high) {
  // Bit v of a byte belongs to the vector of 32 with that number: the halves of each of our vectors
  // are one bit apart. Shifted so that the wanted bit is always bit 2 (bits of the neighbouring
  // byte never reach it).
  const __m256i bits = LoadBytes32(high);
  const __m512i both =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_slli_epi16(bits, 1)), bits, 1);
  const __m512i mask = _mm512_set1_epi8(4);
  Codes codes = LoadCodes2(low);
  const __m512i moved[4] = {_mm512_slli_epi16(both, 1), _mm512_srli_epi16(both, 1),
                            _mm512_srli_epi16(both, 3), _mm512_srli_epi16(both, 5)};
  for (int v = 0; v < 4; ++v) {
    codes.vector[v] = _mm512_or_si512(codes.vector[v], _mm512_and_si512(moved[v], mask));
  }
  return codes;
}
inline void StoreCodes(std::int8_t* out, const Codes& codes, std::int32_t offset) {
  for (int v = 0; v < 4; ++v) StorePair(out + 64 * v, codes.vector[v], offset);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
