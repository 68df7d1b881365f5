// The f32 vectors of the AVX-512 table: sixteen lanes.
#pragma once

#include "kernels/isa/shared/simd_avx2.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using VecF = __m512;
constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kMaxFloatTokens = 4;
/// See dot_float-inl.h: two sums are enough for what memory delivers, three rows with eight tokens
/// leave registers for the operands.
constexpr int kFloatSums = 2;
constexpr int kFloatTileTokens = 8;
constexpr int kFloatTileSums = 24;

inline VecF Zero() { return _mm512_setzero_ps(); }
inline VecF Broadcast(float value) { return _mm512_set1_ps(value); }
inline VecF Load(const void* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, VecF v) { _mm512_storeu_ps(p, v); }
inline void StorePastCache(float* p, VecF v) { _mm512_stream_ps(p, v); }
inline VecF Add(VecF a, VecF b) { return _mm512_add_ps(a, b); }
inline VecF Mul(VecF a, VecF b) { return _mm512_mul_ps(a, b); }
inline VecF Fma(VecF a, VecF b, VecF c) { return _mm512_fmadd_ps(a, b, c); }
inline float Sum(VecF v) {
  return Sum256(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
/// Otherwise the compiler reloads it for every use.
inline void KeepInRegister(VecF& v) { __asm__("" : "+v"(v)); }
inline VecF LoadF16(const void* p) { return _mm512_cvtph_ps(LoadBytes32(p)); }
inline VecF LoadBf16(const void* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadBytes32(p)), 16));
}
inline void StoreF16(void* p, VecF v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline VecF LoadI8(const std::int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes16(p)));
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
