// Vectors whose sixteen 32-bit lanes are blocks; see portable/block_lanes.h for each function.
#pragma once

#include "kernels/isa/avx512/blocks.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kBlockLanes = 16;
using CodeVec = __m512i;
using BlockInts = __m512i;
using BlockFloats = __m512;

// Twelve sums, as many integer sums and the codes of six rows take 30 of the 32 registers; with
// fewer tokens, less of them is read again for other rows.
constexpr int kTileRows = 6;
constexpr int kTileTokens = 2;
constexpr int kListedTokens = 8;
constexpr int kDotTileRows = 2;
constexpr int kDotTileTokens = 4;

inline CodeVec LoadCodeVec(const void* p) { return _mm512_loadu_si512(p); }
inline void KeepInRegister(CodeVec& v) { __asm__("" : "+v"(v)); }
inline BlockInts LoadInts(const std::int32_t* p) { return _mm512_loadu_si512(p); }
inline void StoreInts(std::int32_t* p, BlockInts v) { _mm512_storeu_si512(p, v); }
inline BlockFloats LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
inline void StoreFloats(float* p, BlockFloats v) { _mm512_storeu_ps(p, v); }
inline BlockFloats BroadcastFloats(float value) { return _mm512_set1_ps(value); }
inline BlockFloats MulFloats(BlockFloats a, BlockFloats b) { return _mm512_mul_ps(a, b); }
inline BlockFloats FiniteProduct(BlockFloats a, BlockFloats b) {
  const __m512 largest = _mm512_max_ps(b, _mm512_set1_ps(kLargestFloat));
  return _mm512_min_ps(largest, _mm512_mul_ps(a, b));
}
inline BlockFloats FmaFloats(BlockFloats a, BlockFloats b, BlockFloats c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline BlockFloats ToFloats(BlockInts v) { return _mm512_cvtepi32_ps(v); }
inline float SumFloats(BlockFloats v) { return Sum(v); }

/// SumFloats of four vectors.
inline void StoreSums4(const BlockFloats* v, float* out) {
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  };
  const __m512 ab = halves(v[0], v[1]);
  const __m512 cd = halves(v[2], v[3]);
  __m512 sums =
      _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0x4E));
  sums = _mm512_add_ps(sums, _mm512_permute_ps(sums, 0xB1));
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, sums)));
}

template <int kNatural>
constexpr int kStoredOffset = kNatural;

template <int kBits, int kNatural>
class BlockDots {
 public:
  BlockDots() = default;
  explicit BlockDots(BlockInts first) : sum_(first) {}
  template <int kVector>
  void Add(CodeVec codes, CodeVec x) {
    sum_ = _mm512_dpbusd_epi32(sum_, codes, x);
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

using SignedDots = BlockDots<8, kInt8Bias>;

inline BlockInts ZeroInts() { return _mm512_setzero_si512(); }
inline BlockInts AddInts(BlockInts a, BlockInts b) { return _mm512_add_epi32(a, b); }
template <int kFactor>
inline BlockInts MinusTimes(BlockInts v) {
  if constexpr ((kFactor & (kFactor - 1)) == 0) {
    return _mm512_sub_epi32(_mm512_setzero_si512(),
                            _mm512_slli_epi32(v, __builtin_ctz(static_cast<unsigned>(kFactor))));
  }
  return _mm512_mullo_epi32(v, _mm512_set1_epi32(-kFactor));
}

/// Two superblocks side by side.
struct GroupCodes {
  __m512i vector[8];
};
inline __m512i Beside(const std::uint8_t* first, const std::uint8_t* second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(LoadBytes32(first)), LoadBytes32(second), 1);
}
inline GroupCodes LoadGroupCodes4(const std::uint8_t* first, const std::uint8_t* second) {
  const __m512i mask = _mm512_set1_epi8(15);
  GroupCodes codes;
  for (int v = 0; v < 4; ++v) {
    const __m512i bytes = Beside(first + 32 * v, second + 32 * v);
    codes.vector[v] = _mm512_and_si512(bytes, mask);
    codes.vector[4 + v] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
  }
  return codes;
}
inline GroupCodes LoadGroupCodes8(const std::uint8_t* first, const std::uint8_t* second) {
  const __m512i bias = _mm512_set1_epi8(static_cast<char>(kInt8Bias));
  GroupCodes codes;
  for (int v = 0; v < 8; ++v) {
    codes.vector[v] = _mm512_xor_si512(Beside(first + 32 * v, second + 32 * v), bias);
  }
  return codes;
}
/// Adds the bits of 32 bytes of each superblock, bit v for vector v.
template <int kPlace>
inline void AddBitPlanes(GroupCodes& codes, const std::uint8_t* first, const std::uint8_t* second) {
  const __m512i mask = _mm512_set1_epi8(1 << kPlace);
  const __m512i bits = Beside(first, second);
  for (int v = 0; v < 8; ++v) {
    const __m512i moved =
        v < kPlace ? _mm512_slli_epi16(bits, kPlace - v) : _mm512_srli_epi16(bits, v - kPlace);
    codes.vector[v] = _mm512_or_si512(codes.vector[v], _mm512_and_si512(moved, mask));
  }
}
inline GroupCodes Beside(const Codes& first, const Codes& second) {
  GroupCodes codes;
  for (int v = 0; v < 4; ++v) {
    codes.vector[2 * v] = _mm512_shuffle_i64x2(first.vector[v], second.vector[v], 0x44);
    codes.vector[2 * v + 1] = _mm512_shuffle_i64x2(first.vector[v], second.vector[v], 0xEE);
  }
  return codes;
}
inline BlockFloats Beside(Scale8 first, Scale8 second) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
}

inline BlockInts SumVectors(const std::int8_t* vectors) {
  __m512i sums = _mm512_setzero_si512();
  for (int v = 0; v < 4; ++v) {
    sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), _mm512_loadu_si512(vectors + 64 * v));
  }
  return sums;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
