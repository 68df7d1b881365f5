// Four f32 lanes: arm64 with dotprod and fp16. Byte loads keep any address allowed.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/half-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using VecF = float32x4_t;
constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kMaxFloatTokens = 4;
/// See dot_float-inl.h.
constexpr int kFloatSums = 4;
constexpr int kFloatTileTokens = 8;
constexpr int kFloatTileSums = 24;

inline VecF Zero() { return vdupq_n_f32(0.0F); }
inline VecF Broadcast(float value) { return vdupq_n_f32(value); }
inline VecF Load(const void* p) {
  return vreinterpretq_f32_u8(vld1q_u8(static_cast<const std::uint8_t*>(p)));
}
inline void Store(float* p, VecF v) { vst1q_f32(p, v); }
inline void StorePastCache(float* p, VecF v) { Store(p, v); }
inline void FinishStores() {}
inline VecF Add(VecF a, VecF b) { return vaddq_f32(a, b); }
inline VecF Mul(VecF a, VecF b) { return vmulq_f32(a, b); }
inline VecF Fma(VecF a, VecF b, VecF c) { return vfmaq_f32(c, a, b); }
inline float Sum(VecF v) { return vaddvq_f32(v); }
inline void KeepInRegister(VecF&) {}
inline VecF LoadF16(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const std::uint8_t*>(p))));
}
inline float ScalarF16(const void* p) {
  const uint16x4_t half = vdup_n_u16(ReadU16(p));
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(half)), 0);
}
inline VecF LoadBf16(const void* p) {
  const uint16x4_t bits = vreinterpret_u16_u8(vld1_u8(static_cast<const std::uint8_t*>(p)));
  return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
}
inline void StoreF16(void* p, VecF v) {
  vst1_u8(static_cast<std::uint8_t*>(p), vreinterpret_u8_f16(vcvt_f16_f32(v)));
}
inline VecF LoadI8(const std::int8_t* p) {
  std::int32_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const int16x8_t words = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
}

struct Scale8 {
  float32x4_t low, high;
};

inline Scale8 Load8(const float* p) { return {Load(p), Load(p + 4)}; }
inline void Store8(float* p, const Scale8& v) {
  Store(p, v.low);
  Store(p + 4, v.high);
}
inline Scale8 Broadcast8(float value) { return {Broadcast(value), Broadcast(value)}; }
inline Scale8 Mul8(const Scale8& a, const Scale8& b) {
  return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}
inline Scale8 Fma8(const Scale8& a, const Scale8& b, const Scale8& c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
inline float Sum8(const Scale8& v) { return vaddvq_f32(vaddq_f32(v.low, v.high)); }

/// Eight halves `stride` bytes apart.
inline Scale8 F16Strided8(const std::uint8_t* p, std::int64_t stride) {
  std::uint16_t halves[8];
  for (int j = 0; j < 8; ++j) halves[j] = ReadU16(p + j * stride);
  return {LoadF16(halves), LoadF16(halves + 4)};
}
/// See portable/simd.h. Words are loaded so that no byte behind them is read, and moved down.
class TailLanes {
 public:
  explicit TailLanes(std::int64_t count) : bytes_(4 * count) {
    static constexpr std::uint8_t kPlaces[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};
    const uint8x16_t places = vld1q_u8(kPlaces);
    halves_ = vcltq_u8(places, vdupq_n_u8(static_cast<std::uint8_t>(2 * count)));
    first_ = vaddq_u8(places, vdupq_n_u8(static_cast<std::uint8_t>(32 - bytes_)));
    second_ = vaddq_u8(first_, vdupq_n_u8(16));
  }
  void CopyHalves(const std::uint8_t* in, std::uint8_t* out) const {
    vst1q_u8(out, vandq_u8(vld1q_u8(in), halves_));
  }
  void CopyWords(const std::uint8_t* in, std::uint8_t* out) const {
    const std::uint8_t* end = in + bytes_;
    const uint8x16x2_t bytes = {{vld1q_u8(end - 32), vld1q_u8(end - 16)}};
    // Places beyond the end are zero.
    vst1q_u8(out, vqtbl2q_u8(bytes, first_));
    vst1q_u8(out + 16, vqtbl2q_u8(bytes, second_));
  }

 private:
  std::int64_t bytes_;
  uint8x16_t halves_, first_, second_;
};

inline Scale8 FromBytes8(std::uint64_t bytes) {
  const uint16x8_t words = vmovl_u8(vcreate_u8(bytes));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))),
          vcvtq_f32_u32(vmovl_u16(vget_high_u16(words)))};
}
inline float32x4_t PowersOfTwo4(uint16x4_t exponents) {
  const int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(exponents));
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
  // The larger one: below e = 2, where scales are subnormal, the other is not above zero.
  const int32x4_t subnormal = vshlq_s32(vdupq_n_s32(1 << 21), vminq_s32(e, vdupq_n_s32(2)));
  return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
}
inline Scale8 PowersOfTwo8(std::uint64_t exponents) {
  const uint16x8_t words = vmovl_u8(vcreate_u8(exponents));
  return {PowersOfTwo4(vget_low_u16(words)), PowersOfTwo4(vget_high_u16(words))};
}
/// NaN passes.
inline float32x4_t FiniteProduct(float32x4_t a, float32x4_t b) {
  return vminq_f32(vmulq_f32(a, b), vmaxq_f32(b, vdupq_n_f32(kLargestFloat)));
}
inline Scale8 FiniteProduct(const Scale8& a, const Scale8& b) {
  return {FiniteProduct(a.low, b.low), FiniteProduct(a.high, b.high)};
}
inline Scale8 FromSignedBytes8(const std::uint8_t* p) {
  const int16x8_t words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
          vcvtq_f32_s32(vmovl_s16(vget_high_s16(words)))};
}
template <int kFirst>
inline Scale8 FromFields8(const std::uint8_t* p) {
  // The two bytes that hold each field, in a word; the upper twelve bits for odd fields.
  static constexpr std::uint8_t kPlaces[32] = {0,  1,  99, 99, 1,  2,  99, 99, 3,  4, 99,
                                               99, 4,  5,  99, 99, 6,  7,  99, 99, 7, 8,
                                               99, 99, 9,  10, 99, 99, 10, 11, 99, 99};
  static constexpr std::int32_t kShifts[4] = {-kFirst, -kFirst - 4, -kFirst, -kFirst - 4};
  const uint8x16_t bytes = vld1q_u8(p);
  const int32x4_t shifts = vld1q_s32(kShifts);
  const auto half = [&](const std::uint8_t* places) {
    const uint32x4_t words = vreinterpretq_u32_u8(vqtbl1q_u8(bytes, vld1q_u8(places)));
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(words, shifts), vdupq_n_u32(63)));
  };
  return {half(kPlaces), half(kPlaces + 16)};
}
inline Scale8 BroadcastF16(const std::uint8_t* p) { return Broadcast8(ScalarF16(p)); }

/// Largest magnitude of 32 values as bits; NaN compares above everything.
inline std::uint32_t MaxMagnitudeBits32(const float* x) {
  const uint32x4_t mask = vdupq_n_u32(0x7FFFFFFFU);
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 32; i += 4) {
    largest = vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), mask));
  }
  return vmaxvq_u32(largest);
}

/// values[i] = round-to-even(x[i] * factor); returns the sum of the 32 values.
inline std::int32_t RoundBlock32(const float* x, float factor, std::int8_t* values) {
  std::int32_t sum = 0;
  for (int i = 0; i < 32; i += 8) {
    const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), factor));
    const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), factor));
    vst1_s8(values + i, vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))));
    sum += vaddvq_s32(vaddq_s32(a, b));
  }
  return sum;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
