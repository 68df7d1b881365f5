// Dot products of MXFP4, four blocks at a time; see portable/fp4.h for each function.
//
// The quarters of a vector are blocks, low nibbles apart from high ones, so that both meet in one
// integer sum. Values are biased by 12 to become unsigned; the bias is removed from the integer
// sum, not from the sum of floats, where huge scales would overflow.
#pragma once

#include "kernels/isa/avx512/block_lanes.h"
#include "kernels/isa/shared/groups-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFp4Blocks = 4;
constexpr char kFp4Bias = 12;
struct Fp4Codes {
  __m512i low, high;
};
struct Fp4Sum {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
};
inline float Total(const Fp4Sum& sum) { return Sum(_mm512_add_ps(sum.even, sum.odd)); }
using Fp4Scales = Scale8;

inline Fp4Scales LoadFp4Scales(const std::uint8_t* group) { return MXFP4Group::Scales(group); }
inline Fp4Scales TimesScales(Fp4Scales scales, const float* x_scales) {
  return FiniteProduct(scales, Load8(x_scales));
}

inline Fp4Codes LoadFp4Codes(const std::uint8_t* unit) {
  const __m512i values = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i bytes = _mm512_castsi128_si512(LoadBytes16(unit + 1));
  bytes = _mm512_inserti32x4(bytes, LoadBytes16(unit + 18), 1);
  bytes = _mm512_inserti32x4(bytes, LoadBytes16(unit + 35), 2);
  bytes = _mm512_inserti32x4(bytes, LoadBytes16(unit + 52), 3);
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  return {_mm512_shuffle_epi8(values, _mm512_and_si512(bytes, mask)),
          _mm512_shuffle_epi8(values, high)};
}
template <int kUnit>
inline void DotFp4(Fp4Sum& sum, const Fp4Codes& codes, const std::int8_t* x, Fp4Scales alpha) {
  const __m512i first = _mm512_loadu_si512(x);
  const __m512i second = _mm512_loadu_si512(x + 64);
  const __m512i low = _mm512_shuffle_i64x2(first, second, 0x88);
  const __m512i high = _mm512_shuffle_i64x2(first, second, 0xDD);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i bias = _mm512_set1_epi8(kFp4Bias);
  const __m512i biased = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, bias, low), bias, high);
  const __m512i dots =
      _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, codes.low, low), codes.high, high);
  const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  const __m512i blocks = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * kUnit));
  const __m512 scale = _mm512_permutexvar_ps(blocks, _mm512_castps256_ps512(alpha));
  __m512& half = kUnit % 2 == 0 ? sum.even : sum.odd;
  half = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(dots, biased)), scale, half);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
