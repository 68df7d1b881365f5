// Eight f32 lanes: AVX2 with FMA and F16C. AVX-512 also uses them, for the eight scales of a group.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/isa/shared/half-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

using Vec256 = __m256;

inline __m256i LoadBytes32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void StoreBytes32(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline __m128i LoadBytes16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline __m128i LoadBytes8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

inline float Sum256(__m256 v) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/// After StorePastCache, before another thread may read.
inline void FinishStores() { _mm_sfence(); }

using Scale8 = __m256;

inline Scale8 Load8(const float* p) { return _mm256_loadu_ps(p); }
inline void Store8(float* p, Scale8 v) { _mm256_storeu_ps(p, v); }
inline Scale8 Broadcast8(float value) { return _mm256_set1_ps(value); }
inline Scale8 Mul8(Scale8 a, Scale8 b) { return _mm256_mul_ps(a, b); }
inline Scale8 Fma8(Scale8 a, Scale8 b, Scale8 c) { return _mm256_fmadd_ps(a, b, c); }
inline float Sum8(Scale8 v) { return Sum256(v); }

inline float ScalarF16(const void* p) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(ReadU16(p))));
}

inline short Word(const std::uint8_t* p) { return static_cast<short>(ReadU16(p)); }

/// Eight halves `stride` bytes apart.
inline Scale8 F16Strided8(const std::uint8_t* p, std::int64_t stride) {
  if (stride == 2) return _mm256_cvtph_ps(LoadBytes16(p));
  const __m128i halves = _mm_setr_epi16(
      Word(p), Word(p + stride), Word(p + 2 * stride), Word(p + 3 * stride), Word(p + 4 * stride),
      Word(p + 5 * stride), Word(p + 6 * stride), Word(p + 7 * stride));
  return _mm256_cvtph_ps(halves);
}

/// See portable/simd.h.
class TailLanes {
 public:
  explicit TailLanes(std::int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    words_ = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
    halves_ = _mm_packs_epi32(_mm256_castsi256_si128(words_), _mm256_extracti128_si256(words_, 1));
  }
  void CopyHalves(const std::uint8_t* in, std::uint8_t* out) const {
    const __m128i halves = _mm_and_si128(LoadBytes16(in), halves_);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), halves);
  }
  void CopyWords(const std::uint8_t* in, std::uint8_t* out) const {
    StoreBytes32(out, _mm256_maskload_epi32(reinterpret_cast<const int*>(in), words_));
  }

 private:
  __m256i words_;
  __m128i halves_;
};

inline Scale8 FromBytes8(std::uint64_t bytes) {
  const __m128i packed = _mm_cvtsi64_si128(static_cast<long long>(bytes));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
}
/// 2^(e - 128) of eight exponents.
inline __m256 PowersOfTwo(__m256i exponents) {
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)), 23);
  // The larger one: below e = 2, where scales are subnormal, the other is not above zero.
  const __m256i least = _mm256_min_epi32(exponents, _mm256_set1_epi32(2));
  const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), least);
  return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
}
inline Scale8 PowersOfTwo8(std::uint64_t exponents) {
  const __m128i packed = _mm_cvtsi64_si128(static_cast<long long>(exponents));
  return PowersOfTwo(_mm256_cvtepu8_epi32(packed));
}
inline Scale8 FiniteProduct(Scale8 a, Scale8 b) {
  // If an operand is NaN, both instructions return the second one.
  const __m256 largest = _mm256_max_ps(b, _mm256_set1_ps(kLargestFloat));
  return _mm256_min_ps(largest, _mm256_mul_ps(a, b));
}
inline Scale8 FromSignedBytes8(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(LoadBytes8(p)));
}
template <int kFirst>
inline Scale8 FromFields8(const std::uint8_t* p) {
  // The two bytes that hold each field, in a word; the upper twelve bits for odd fields.
  const __m256i places = _mm256_setr_epi8(                         //
      0, 1, -1, -1, 1, 2, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1,      //
      6, 7, -1, -1, 7, 8, -1, -1, 9, 10, -1, -1, 10, 11, -1, -1);  //
  const __m256i words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(LoadBytes16(p)), places);
  const __m256i shifts = _mm256_setr_epi32(kFirst, kFirst + 4, kFirst, kFirst + 4, kFirst,
                                           kFirst + 4, kFirst, kFirst + 4);
  const __m256i fields = _mm256_srlv_epi32(words, shifts);
  return _mm256_cvtepi32_ps(_mm256_and_si256(fields, _mm256_set1_epi32(63)));
}
/// Converts a word loaded from memory: one register less to pass through than with a lone half.
inline Scale8 BroadcastF16(const std::uint8_t* p) {
  return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(ReadU32(p)))));
}

/// Largest magnitude of 32 values as bits; NaN compares above everything.
inline std::uint32_t MaxMagnitudeBits32(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    largest = _mm256_max_epi32(largest, _mm256_and_si256(LoadBytes32(x + i), mask));
  }
  __m128i half =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(half));
}

inline std::int32_t SumI32(__m256i v) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
  return _mm_cvtsi128_si32(sum);
}

/// values[i] = round-to-even(x[i] * factor); returns the sum of the 32 values.
inline std::int32_t RoundBlock32(const float* x, float factor, std::int8_t* values) {
  const __m256 scale = _mm256_set1_ps(factor);
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
  const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), scale));
  const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), scale));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
  // Packing works within 128-bit lanes; the permutation puts the words back in order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  StoreBytes32(values, _mm256_permutevar8x32_epi32(packed, order));
  return SumI32(sum);
}

/// Transposes 8 x 8 words of 32 bits.
inline void TransposeWords(const std::int8_t* in, std::int8_t* out) {
  __m256i pairs[8];
  __m256i quads[8];
  for (int i = 0; i < 8; i += 2) {
    const __m256i a = LoadBytes32(in + 32 * i);
    const __m256i b = LoadBytes32(in + 32 * i + 32);
    pairs[i] = _mm256_unpacklo_epi32(a, b);
    pairs[i + 1] = _mm256_unpackhi_epi32(a, b);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      quads[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      quads[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    StoreBytes32(out + 32 * i, _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20));
    StoreBytes32(out + 32 * i + 128, _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31));
  }
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
