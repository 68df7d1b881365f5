// Vectors whose eight 32-bit lanes are blocks, and their dot products by AVX2's maddubs; what each
// does is said in portable/block_lanes.h.
#pragma once

#include "kernels/isa/avx2/block_lanes_256.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kTileRows = 2;
constexpr int kTileTokens = 2;
constexpr int kListedTokens = 4;

/// maddubs wants unsigned codes; those of eight bits stay signed and lend their sign to x.
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
    __m256i products;
    if constexpr (kIsSigned) {
      products = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    } else {
      products = _mm256_maddubs_epi16(codes, x);
    }
    words_ = kVector % kAddedInWords == 0 ? products : _mm256_add_epi16(words_, products);
    if constexpr (kVector % kAddedInWords == kAddedInWords - 1) {
      sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(words_, _mm256_set1_epi16(1)));
    }
  }
  BlockInts Total() const { return sum_; }

 private:
  static constexpr bool kIsSigned = kBits == 8;
  static constexpr int kLargestPair = 2 * 127 * ((1 << kBits) - 1);
  static constexpr int kAddedInWords = kIsSigned                   ? 1
                                       : 8 * kLargestPair <= 32767 ? 8
                                       : 4 * kLargestPair <= 32767 ? 4
                                                                   : 2;
  static_assert(kIsSigned || kAddedInWords * kLargestPair <= 32767);

  BlockInts sum_;
  __m256i words_ = _mm256_setzero_si256();
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
