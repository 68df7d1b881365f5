// Scalar reads and half-precision conversions. In the instruction set's own namespace, like every
// -inl header here: a shared inline function could reach the linker as AVX-512 code for all tables.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace powerinfer::POWERINFER_ISA {
namespace {

inline std::uint16_t ReadU16(const void* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline std::uint32_t ReadU32(const void* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

constexpr float kLargestFloat = 0x1.FFFFFEp127F;

/// 2^(e - 128), the scale of MXFP4; subnormal below e = 2.
inline float PowerOfTwo(std::uint32_t e) {
  return std::bit_cast<float>(e < 2 ? (1U << 21) << e : (e - 1) << 23);
}

inline float F16ToF32(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude < 0x0400U) {  // zero and subnormals: multiples of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  const std::uint32_t rebias = magnitude >= 0x7C00U ? 0x70000000U : 0x38000000U;
  return std::bit_cast<float>(sign | ((magnitude << 13) + rebias));
}

/// Rounds to nearest even; overflow becomes infinity, NaN stays a (quiet) NaN.
inline std::uint16_t F32ToF16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 65520
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to the unit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  magnitude += 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U) >> 13));
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
