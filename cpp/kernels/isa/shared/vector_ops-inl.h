// Quantizing activations, superblock order, and plain f32/f16 vector operations.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/isa/shared/decode-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Below this magnitude 127 / max overflows f32; such blocks count as zero.
constexpr float kTinyBlock = 0x1p-120F;

void Quantize(const float* x, std::int64_t n, std::int8_t* values, float* scales, float* sums) {
  for (std::int64_t b = 0; b < n / 32; ++b) {
    const std::uint32_t bits = MaxMagnitudeBits32(x + 32 * b);
    const auto largest = std::bit_cast<float>(bits);
    if (bits >= 0x7F800000U || largest < kTinyBlock) {
      // Infinity and NaN must reach the output: a NaN scale poisons every product.
      constexpr std::uint32_t kNaN = 0x7FC00000U;
      const float scale = bits >= 0x7F800000U ? std::bit_cast<float>(kNaN) : 0.0F;
      std::memset(values + 32 * b, 0, 32);
      scales[b] = scale;
      sums[b] = scale;
      continue;
    }
    const std::int32_t sum = RoundBlock32(x + 32 * b, 127.0F / largest, values + 32 * b);
    scales[b] = largest / 127.0F;
    sums[b] = scales[b] * static_cast<float>(sum);
  }
}

/// An 8 x 8 transpose of words in every 256 values; the superblocks of a group lie side by side.
void Permute(const std::int8_t* values, std::int64_t n, std::int8_t* permuted,
             std::int32_t* half_sums) {
  constexpr std::int64_t kGroup = 32 * kBlockLanes;
  constexpr std::int64_t kVector = 4 * kBlockLanes;
  for (std::int64_t at = 0; at < n; at += 256) {
    std::int8_t vectors[256];
    TransposeWords(values + at, vectors);
    std::int8_t* out = permuted + at / kGroup * kGroup + at % kGroup / 8;
    for (std::int64_t v = 0; v < 8; ++v) std::memcpy(out + kVector * v, vectors + 32 * v, 32);
  }
  for (std::int64_t at = 0; at < n; at += kGroup, half_sums += 2 * kBlockLanes) {
    for (std::int64_t half = 0; half < 2; ++half) {
      StoreInts(half_sums + half * kBlockLanes, SumVectors(permuted + at + 4 * half * kVector));
    }
  }
}

float DotF32(const float* a, const float* b, std::int64_t n) {
  float sum;
  DotFloatRow<F32Weights, 1>(reinterpret_cast<const std::uint8_t*>(a), n, 0, &b, &sum);
  return sum;
}

float DotF16(const std::uint16_t* a, const float* b, std::int64_t n) {
  float sum;
  DotFloatRow<F16Weights, 1>(reinterpret_cast<const std::uint8_t*>(a), n, 0, &b, &sum);
  return sum;
}

void AxpyF16(const std::uint16_t* row, std::int64_t n, float scale, float* y) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
  DecodeFloatRow<F16Weights>(bytes, n, AxpySink{y, Broadcast(scale)});
}

void F32ToF16Row(const float* x, std::int64_t n, std::uint16_t* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreF16(out + i, Load(x + i));
  for (; i < n; ++i) out[i] = F32ToF16(x[i]);
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
