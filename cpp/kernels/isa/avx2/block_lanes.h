// Vectors whose eight 32-bit lanes are blocks, and their dot products by AVX2's maddubs, or maddwd
// for eight-bit codes; see portable/block_lanes.h for each.
#pragma once

#include "kernels/isa/avx2/block_lanes_256.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kTileRows = 4;
constexpr int kTileTokens = 2;
constexpr int kListedTokens = 4;

/// Codes of eight bits stay signed.
template <int kNatural>
constexpr int kStoredOffset = kNatural == 128 ? 0 : kNatural;

/// Products of unsigned codes with int8 add up in pairs to int16; as many vectors are added there
/// as fit (magnitudes of x are at most 127), then widened.
template <int kBits, int kNatural>
class BlockDots {
 public:
  BlockDots() = default;
  explicit BlockDots(BlockInts first) : sum_(first) {}

  template <int kVector>
  void Add(CodeVec codes, CodeVec x) {
    const __m256i products = _mm256_maddubs_epi16(codes, x);
    words_ = kVector % kAddedInWords == 0 ? products : _mm256_add_epi16(words_, products);
    // Otherwise the compiler makes a tree of the additions and keeps all products until then.
    KeepInRegister(words_);
    if constexpr (kVector % kAddedInWords == kAddedInWords - 1) {
      sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(words_, _mm256_set1_epi16(1)));
    }
  }
  BlockInts Total() const { return sum_; }

 private:
  static constexpr int kLargestPair = 2 * 127 * ((1 << kBits) - 1);
  static constexpr int kAddedInWords = 8 * kLargestPair <= 32767   ? 8
                                       : 4 * kLargestPair <= 32767 ? 4
                                                                   : 2;
  static_assert(kAddedInWords * kLargestPair <= 32767);

  BlockInts sum_;
  __m256i words_ = _mm256_setzero_si256();
};

/// A pair of products with eight-bit codes nearly fills int16, and maddubs would need the signs of
/// the codes moved to x for every product. Instead both are widened, the codes once for all tokens.
template <int kNatural>
class BlockDots<8, kNatural> {
 public:
  static constexpr bool kWantsWords = true;

  BlockDots() = default;
  explicit BlockDots(BlockInts first) : sum_(first) {}

  /// The even or odd bytes of x.
  template <int kOdd>
  static CodeVec Words(CodeVec x) {
    return _mm256_srai_epi16(kOdd == 1 ? x : _mm256_slli_epi16(x, 8), 8);
  }
  template <int kVector>
  void Add(CodeVec codes, CodeVec x) {
    sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(codes, x));
    KeepInRegister(sum_);
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

/// Bytes as files have them: a pair of their products leaves no room in int16 for another one.
class SignedDots {
 public:
  SignedDots() = default;
  explicit SignedDots(BlockInts first) : sum_(first) {}
  template <int kVector>
  void Add(CodeVec codes, CodeVec x) {
    const __m256i pairs = SignedProducts(codes, x);
    sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    KeepInRegister(sum_);
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
