// Plain C++ vectors: one lane, and arrays of eight if a kernel works on eight block scales.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/half-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using VecF = float;
constexpr std::int64_t kLanes = 1;
constexpr std::int64_t kMaxFloatTokens = 4;
/// See dot_float-inl.h.
constexpr int kFloatSums = 4;
constexpr int kFloatTileTokens = 4;
constexpr int kFloatTileSums = 12;

inline VecF Zero() { return 0.0F; }
inline VecF Broadcast(float value) { return value; }
inline VecF Load(const void* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline void Store(float* p, VecF v) { *p = v; }
/// Store to aligned memory that nothing reads soon: its old content is not fetched. FinishStores
/// must follow before another thread may read.
inline void StorePastCache(float* p, VecF v) { Store(p, v); }
inline void FinishStores() {}
inline VecF Add(VecF a, VecF b) { return a + b; }
inline VecF Mul(VecF a, VecF b) { return a * b; }
inline VecF Fma(VecF a, VecF b, VecF c) { return a * b + c; }
inline float Sum(VecF v) { return v; }
inline void KeepInRegister(VecF&) {}
inline VecF LoadF16(const void* p) { return F16ToF32(ReadU16(p)); }
/// One half.
inline float ScalarF16(const void* p) { return F16ToF32(ReadU16(p)); }
inline VecF LoadBf16(const void* p) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(ReadU16(p)) << 16);
}
inline void StoreF16(void* p, VecF v) {
  const std::uint16_t half = F32ToF16(v);
  std::memcpy(p, &half, sizeof half);
}
inline VecF LoadI8(const std::int8_t* p) { return static_cast<float>(*p); }

struct Scale8 {
  float lane[8];
};

inline Scale8 Load8(const float* p) {
  Scale8 result;
  std::memcpy(result.lane, p, sizeof result.lane);
  return result;
}
inline void Store8(float* p, const Scale8& v) { std::memcpy(p, v.lane, sizeof v.lane); }
inline Scale8 Broadcast8(float value) {
  return {{value, value, value, value, value, value, value, value}};
}
inline Scale8 Mul8(const Scale8& a, const Scale8& b) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) result.lane[j] = a.lane[j] * b.lane[j];
  return result;
}
inline Scale8 Fma8(const Scale8& a, const Scale8& b, const Scale8& c) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) result.lane[j] = a.lane[j] * b.lane[j] + c.lane[j];
  return result;
}
inline float Sum8(const Scale8& v) {
  return ((v.lane[0] + v.lane[4]) + (v.lane[2] + v.lane[6])) +
         ((v.lane[1] + v.lane[5]) + (v.lane[3] + v.lane[7]));
}
inline Scale8 F16Strided8(const std::uint8_t* p, std::int64_t stride) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) result.lane[j] = F16ToF32(ReadU16(p + j * stride));
  return result;
}
/// Copies the first `count` of eight lanes and clears the others. `in` holds those lanes alone and
/// has others of the row before it or behind it.
class TailLanes {
 public:
  explicit TailLanes(std::int64_t count) : count_(static_cast<std::size_t>(count)) {}
  /// Eight halves. Sixteen bytes of the row must follow `in`.
  void CopyHalves(const std::uint8_t* in, std::uint8_t* out) const { Copy<2>(in, out); }
  /// Eight words of four bytes. Sixteen bytes of the row must precede `in`.
  void CopyWords(const std::uint8_t* in, std::uint8_t* out) const { Copy<4>(in, out); }

 private:
  template <std::size_t kBytes>
  void Copy(const std::uint8_t* in, std::uint8_t* out) const {
    std::memset(out, 0, 8 * kBytes);
    std::memcpy(out, in, count_ * kBytes);
  }

  std::size_t count_;
};

inline Scale8 FromBytes8(std::uint64_t bytes) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) {
    result.lane[j] = static_cast<float>((bytes >> (8 * j)) & 0xFF);
  }
  return result;
}
/// 2^(e - 128) of the eight bytes e.
inline Scale8 PowersOfTwo8(std::uint64_t exponents) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) {
    result.lane[j] = PowerOfTwo(static_cast<std::uint32_t>(exponents >> (8 * j)) & 0xFF);
  }
  return result;
}
/// a * b of scales. Finite ones that overflow give the largest float, which times zero is zero.
inline Scale8 FiniteProduct(const Scale8& a, const Scale8& b) {
  Scale8 result = Mul8(a, b);
  for (int j = 0; j < 8; ++j) {
    const float largest = b.lane[j] > kLargestFloat ? b.lane[j] : kLargestFloat;
    result.lane[j] = result.lane[j] > largest ? largest : result.lane[j];
  }
  return result;
}
inline Scale8 FromSignedBytes8(const std::uint8_t* p) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) result.lane[j] = static_cast<float>(static_cast<std::int8_t>(p[j]));
  return result;
}
/// Six bits from bit kFirst on of each of eight fields of twelve bits, one after the other. May
/// read sixteen bytes.
template <int kFirst>
inline Scale8 FromFields8(const std::uint8_t* p) {
  Scale8 result;
  for (int j = 0; j < 8; ++j) {
    const int field = ReadU16(p + 3 * j / 2) >> (j % 2 * 4);
    result.lane[j] = static_cast<float>((field >> kFirst) & 63);
  }
  return result;
}
/// A half in all lanes. May read two bytes more.
inline Scale8 BroadcastF16(const std::uint8_t* p) { return Broadcast8(ScalarF16(p)); }

/// Largest magnitude of 32 values as bits; NaN compares above everything.
inline std::uint32_t MaxMagnitudeBits32(const float* x) {
  std::uint32_t result = 0;
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU;
    result = bits > result ? bits : result;
  }
  return result;
}

/// values[i] = round-to-even(x[i] * factor); returns the sum of the 32 values.
inline std::int32_t RoundBlock32(const float* x, float factor, std::int8_t* values) {
  // Adding 1.5 * 2^23 leaves the integer, rounded to even, in the low mantissa bits.
  constexpr float kMagic = 12582912.0F;
  std::int32_t sum = 0;
  for (int i = 0; i < 32; ++i) {
    const float shifted = x[i] * factor + kMagic;
    const std::int32_t value = std::bit_cast<std::int32_t>(shifted) - 0x4B400000;
    values[i] = static_cast<std::int8_t>(value);
    sum += value;
  }
  return sum;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
