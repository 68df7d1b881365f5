// Dot products of MXFP4, two blocks at a time; see portable/fp4.h for each function.
//
// The halves of a vector are blocks, low nibbles apart from high ones, so that both meet in one
// integer sum. Codes become magnitudes, their signs move to the activations: bit 3 of a code at the
// place of a byte's sign bit. Sums of two pairs are at most 4 * 12 * 127 = 6096, within int16.
#pragma once

#include "kernels/isa/avx2/blocks.h"
#include "kernels/isa/shared/groups-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFp4Blocks = 2;
struct Fp4Codes {
  __m256i low, high;              ///< magnitudes
  __m256i low_signs, high_signs;  ///< negative, or zero only where the magnitude is
};
using Fp4Sum = PairSum;
using Fp4Scales = Scale8;

inline Fp4Scales LoadFp4Scales(const std::uint8_t* group) { return MXFP4Group::Scales(group); }
inline Fp4Scales TimesScales(Fp4Scales scales, const float* x_scales) {
  // Word u of half k becomes block 2 u + k.
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm256_permutevar8x32_ps(FiniteProduct(scales, Load8(x_scales)), order);
}

inline __m256i Beside(const void* first, const void* second) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(LoadBytes16(first)), LoadBytes16(second),
                                 1);
}
inline Fp4Codes LoadFp4Codes(const std::uint8_t* unit) {
  const __m256i magnitudes =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i bytes = Beside(unit + 1, unit + 18);
  // Without signs; places are looked up by the lower four bits, so the other code may stay above.
  const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(0x77));
  const __m256i high = _mm256_srli_epi16(low, 4);
  return {_mm256_shuffle_epi8(magnitudes, low), _mm256_shuffle_epi8(magnitudes, high),
          _mm256_slli_epi16(bytes, 4), bytes};
}
template <int kUnit>
inline void DotFp4(Fp4Sum& sum, const Fp4Codes& codes, const std::int8_t* x, Fp4Scales alpha) {
  const __m256i x_low = _mm256_sign_epi8(Beside(x, x + 32), codes.low_signs);
  const __m256i x_high = _mm256_sign_epi8(Beside(x + 16, x + 48), codes.high_signs);
  const __m256i products = _mm256_add_epi16(_mm256_maddubs_epi16(codes.low, x_low),
                                            _mm256_maddubs_epi16(codes.high, x_high));
  __m256& half = kUnit % 2 == 0 ? sum.even : sum.odd;
  half = AddScaled(half, products, _mm256_set1_epi16(1), _mm256_permute_ps(alpha, kUnit * 0x55));
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
