// Pieces of operands in bfloat16 for kernels/isa/*/gemm.cpp with AVX512_BF16; everything has
// internal linkage (isa_tables.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace powerinfer {
namespace {

inline __m512 LoadUpTo(const float* p, std::int64_t count) {
  if (count >= 16) return _mm512_loadu_ps(p);
  if (count <= 0) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), p);
}

/// 32 numbers as bfloat16: `a` first, then `b`.
inline __m512i HighPart(__m512 a, __m512 b) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

/// Two successive depths of 16 columns, interleaved as in a tile.
inline __m512i InterleaveDepths(__m512 even, __m512 odd) {
  const __m512i both = HighPart(even, odd);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

}  // namespace
}  // namespace powerinfer
