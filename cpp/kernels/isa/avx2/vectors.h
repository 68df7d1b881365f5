// The f32 vectors of the AVX2 table.
#pragma once

#include "kernels/isa/shared/simd_avx2.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using VecF = __m256;
constexpr std::int64_t kLanes = 8;
/// Two tokens with four accumulators each leave registers for the operands.
constexpr std::int64_t kMaxFloatTokens = 2;
/// See dot_float-inl.h: three rows with four tokens leave registers for the operands.
constexpr int kFloatSums = 4;
constexpr int kFloatTileTokens = 4;
constexpr int kFloatTileSums = 12;

inline VecF Zero() { return _mm256_setzero_ps(); }
inline VecF Broadcast(float value) { return _mm256_set1_ps(value); }
inline VecF Load(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
inline void Store(float* p, VecF v) { _mm256_storeu_ps(p, v); }
inline void StorePastCache(float* p, VecF v) { _mm256_stream_ps(p, v); }
inline VecF Add(VecF a, VecF b) { return _mm256_add_ps(a, b); }
inline VecF Mul(VecF a, VecF b) { return _mm256_mul_ps(a, b); }
inline VecF Fma(VecF a, VecF b, VecF c) { return _mm256_fmadd_ps(a, b, c); }
inline float Sum(VecF v) { return Sum256(v); }
/// Otherwise the compiler reloads it for every use.
inline void KeepInRegister(VecF& v) { __asm__("" : "+x"(v)); }
inline VecF LoadF16(const void* p) { return _mm256_cvtph_ps(LoadBytes16(p)); }
inline VecF LoadBf16(const void* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadBytes16(p)), 16));
}
inline void StoreF16(void* p, VecF v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline VecF LoadI8(const std::int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(LoadBytes8(p)));
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
