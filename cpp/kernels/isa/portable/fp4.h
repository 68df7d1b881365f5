// Plain C++ primitives for dot products of MXFP4: groups of eight blocks of 32 weights, 17 bytes
// each, in units of blocks that are read at once.
#pragma once

#include <cstdint>

#include "kernels/isa/portable/blocks.h"
#include "kernels/isa/shared/groups-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kFp4Blocks = 2;  ///< of a unit
using Fp4Codes = Pair;
using Fp4Sum = PairSum;
/// Factors of the eight blocks of a group, in an order that depends on the instruction set.
using Fp4Scales = Scale8;

/// Reads no bytes but the group's.
inline Fp4Scales LoadFp4Scales(const std::uint8_t* group) { return MXFP4Group::Scales(group); }
/// Times the scales of x, f32[8].
inline Fp4Scales TimesScales(const Fp4Scales& scales, const float* x_scales) {
  return FiniteProduct(scales, Load8(x_scales));
}
inline Fp4Codes LoadFp4Codes(const std::uint8_t* unit) { return Fp4Pair16(unit + 1, unit + 18); }
/// Adds alpha * (block . x) for the blocks of unit kUnit of a group.
template <int kUnit>
inline void DotFp4(Fp4Sum& sum, const Fp4Codes& codes, const std::int8_t* x,
                   const Fp4Scales& alpha) {
  DotSigned(sum, codes, x, alpha, kUnit);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
