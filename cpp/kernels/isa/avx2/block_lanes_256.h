// Vectors of 256 bits whose eight 32-bit lanes are blocks, for any multiplication; see
// portable/block_lanes.h for each function.
#pragma once

#include "kernels/isa/avx2/blocks.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kBlockLanes = 8;
using CodeVec = __m256i;
using BlockInts = __m256i;
using BlockFloats = __m256;

// See portable/block_lanes.h.
constexpr int kDotTileRows = 2;
constexpr int kDotTileTokens = 4;

inline CodeVec LoadCodeVec(const void* p) { return LoadBytes32(p); }
inline void KeepInRegister(CodeVec& v) { __asm__("" : "+x"(v)); }
inline BlockInts LoadInts(const std::int32_t* p) { return LoadBytes32(p); }
inline void StoreInts(std::int32_t* p, BlockInts v) { StoreBytes32(p, v); }
inline BlockFloats LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
inline void StoreFloats(float* p, BlockFloats v) { _mm256_storeu_ps(p, v); }
inline BlockFloats BroadcastFloats(float value) { return _mm256_set1_ps(value); }
inline BlockFloats MulFloats(BlockFloats a, BlockFloats b) { return _mm256_mul_ps(a, b); }
inline BlockFloats FmaFloats(BlockFloats a, BlockFloats b, BlockFloats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline BlockFloats ToFloats(BlockInts v) { return _mm256_cvtepi32_ps(v); }
inline float SumFloats(BlockFloats v) { return Sum256(v); }
inline void StoreSums4(const BlockFloats* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = SumFloats(v[i]);
}

inline BlockInts ZeroInts() { return _mm256_setzero_si256(); }
inline BlockInts AddInts(BlockInts a, BlockInts b) { return _mm256_add_epi32(a, b); }
template <int kFactor>
inline BlockInts MinusTimes(BlockInts v) {
  return _mm256_mullo_epi32(v, _mm256_set1_epi32(-kFactor));
}

using GroupCodes = Codes;
inline GroupCodes Beside(const Codes& first, const Codes&) { return first; }
inline GroupCodes LoadGroupCodes4(const std::uint8_t* first, const std::uint8_t*) {
  return LoadCodes4(first);
}
inline GroupCodes LoadGroupCodes8(const std::uint8_t* first, const std::uint8_t*) {
  return LoadCodes8(first);
}
inline BlockFloats Beside(Scale8 first, Scale8) { return first; }

inline BlockInts SumVectors(const std::int8_t* vectors) {
  __m256i sums = _mm256_setzero_si256();
  for (int v = 0; v < 4; ++v) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), LoadBytes32(vectors + 32 * v));
    sums = _mm256_add_epi16(sums, pairs);
  }
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
