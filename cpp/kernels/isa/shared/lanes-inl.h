// Sums in an order that no instruction set changes, and other parts that encoders share.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/decode-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr float kMaxHalf = 65504.0F;

// Vectors of the length that the instruction set has: longer ones are split badly by GCC 12.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Lanes __attribute__((vector_size(4 * kWidth)));
typedef float UnalignedLanes __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef std::int32_t IntLanes __attribute__((vector_size(4 * kWidth)));
typedef float Lanes4 __attribute__((vector_size(16)));
constexpr int kVectors = 32 / kWidth;  ///< in a block of 32

#define ENCODE_INLINE [[gnu::always_inline]] inline

// No function takes or returns vectors: how they would be passed depends on the instruction set.
ENCODE_INLINE const UnalignedLanes& LanesAt(const float* p) {
  return *reinterpret_cast<const UnalignedLanes*>(p);
}

/// Sum of kCount vectors: halves are added to each other down to one number, whatever the width.
template <int kCount>
ENCODE_INLINE float SumLanes(Lanes* v) {
  for (int half = kCount / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  Lanes4 four[kWidth / 4];
  std::memcpy(four, v, sizeof four);
  for (int half = kWidth / 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) four[i] += four[i + half];
  }
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

/// Magnitudes added in sixteen lanes.
struct MagnitudeSum {
  Lanes lanes[16 / kWidth] = {};

  ENCODE_INLINE void Add16(const float* x) {
    for (int i = 0; i < 16 / kWidth; ++i) {
      const Lanes values = LanesAt(x + i * kWidth);
      lanes[i] += reinterpret_cast<Lanes>(reinterpret_cast<IntLanes>(values) & 0x7FFFFFFF);
    }
  }
  /// Their mean over x[0..n), not counting the zeros at its end.
  ENCODE_INLINE float Mean(const float* x, std::int64_t n) {
    while (n > 0 && x[n - 1] == 0.0F) --n;
    return n == 0 ? 0.0F : SumLanes<16 / kWidth>(lanes) / static_cast<float>(n);
  }
};

inline void WriteHalf(std::uint8_t* p, float value) {
  const std::uint16_t half = F32ToF16(value);
  std::memcpy(p, &half, sizeof half);
}

/// Largest magnitude of 32 numbers; false if one is not finite or beyond the limit.
inline bool LargestWithin(const float* x, float limit, float* largest) {
  *largest = std::bit_cast<float>(MaxMagnitudeBits32(x));
  return *largest <= limit;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
