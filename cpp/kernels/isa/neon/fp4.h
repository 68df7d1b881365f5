// Dot products of MXFP4, four blocks at a time; see portable/fp4.h for each function.
//
// A table turns codes into int8. The integer sums of four blocks become one vector, so that one
// multiplication scales them all.
#pragma once

#include "kernels/isa/neon/blocks.h"
#include "kernels/isa/shared/groups-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFp4Blocks = 4;
struct Fp4Codes {
  int8x16_t low[4], high[4];
};
struct Fp4Sum {
  float32x4_t even = vdupq_n_f32(0.0F);
  float32x4_t odd = vdupq_n_f32(0.0F);
};
inline float Total(const Fp4Sum& sum) { return vaddvq_f32(vaddq_f32(sum.even, sum.odd)); }
using Fp4Scales = Scale8;

inline Fp4Scales LoadFp4Scales(const std::uint8_t* group) { return MXFP4Group::Scales(group); }
inline Fp4Scales TimesScales(const Fp4Scales& scales, const float* x_scales) {
  return FiniteProduct(scales, Load8(x_scales));
}

inline Fp4Codes LoadFp4Codes(const std::uint8_t* unit) {
  const int8x16_t values = Fp4Values();
  Fp4Codes codes;
  for (int k = 0; k < kFp4Blocks; ++k) {
    const uint8x16_t bytes = vld1q_u8(unit + 17 * k + 1);
    codes.low[k] = LookUp(values, LowNibbles(bytes));
    codes.high[k] = LookUp(values, HighNibbles(bytes));
  }
  return codes;
}
template <int kUnit>
inline void DotFp4(Fp4Sum& sum, const Fp4Codes& codes, const std::int8_t* x,
                   const Fp4Scales& alpha) {
  int32x4_t dots[kFp4Blocks];
  for (int k = 0; k < kFp4Blocks; ++k) {
    const std::int8_t* block = x + 32 * k;
    dots[k] = Dot16(Dot16(vdupq_n_s32(0), codes.low[k], block), codes.high[k], block + 16);
  }
  const int32x4_t blocks = vpaddq_s32(vpaddq_s32(dots[0], dots[1]), vpaddq_s32(dots[2], dots[3]));
  float32x4_t& half = kUnit % 2 == 0 ? sum.even : sum.odd;
  half = vfmaq_f32(half, vcvtq_f32_s32(blocks), kUnit == 0 ? alpha.low : alpha.high);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
