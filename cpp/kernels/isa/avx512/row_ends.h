// The last blocks of a row, at most eight, in vectors of eight lanes, half as long as those of two
// superblocks: masked loads read them as they lie.
#pragma once

#include "kernels/isa/shared/superblocks-inl.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

template <class Superblock>
  requires kHasTails<Superblock>
class RowEnd<Superblock> {
 public:
  /// num_blocks: 1 to 8.
  [[gnu::always_inline]] RowEnd(const std::uint8_t* data, std::int64_t num_blocks)
      : data_(data),
        num_blocks_(num_blocks),
        lanes_(static_cast<__mmask8>((1U << num_blocks) - 1U)) {
    constexpr int kFirst = kNumWords == 5 ? 1 : 0;
    const __m256i low = _mm256_set1_epi8(15);
    for (int v = 0; v < kNumWords - kFirst; ++v) {
      const __m256i word = Word(kFirst + v);
      if constexpr (kNumWords == 8) {
        codes_[v] = _mm256_xor_si256(word, _mm256_set1_epi8(static_cast<char>(kInt8Bias)));
      } else {
        codes_[v] = _mm256_and_si256(word, low);
        codes_[4 + v] = _mm256_and_si256(_mm256_srli_epi16(word, 4), low);
      }
    }
    if constexpr (kFirst == 1) AddFifthBits(Word(0));
  }

  /// f32 by block, zero for those that are missing.
  [[gnu::always_inline]] BlockFloats Scales() const { return Half(0); }
  [[gnu::always_inline]] BlockFloats Minima() const { return Half(1); }

  /// `start` and the products of every block with the activations of a group.
  [[gnu::always_inline]] BlockInts Dots(BlockInts start, const std::int8_t* permuted) const {
    __m256i sums = _mm512_castsi512_si256(start);
    for (int v = 0; v < 8; ++v) {
      sums = _mm256_dpbusd_epi32(sums, codes_[v], LoadBytes32(permuted + 4 * kBlockLanes * v));
    }
    return _mm512_zextsi256_si512(sums);
  }

 private:
  static constexpr int kNumWords = Superblock::kNumWords;

  [[gnu::always_inline]] BlockFloats Half(std::int64_t place) const {
    const std::uint8_t* at = data_ + 2 * place * num_blocks_;
    return _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_maskz_loadu_epi16(lanes_, at)));
  }
  [[gnu::always_inline]] __m256i Word(std::int64_t place) const {
    const std::int64_t at = (2 * Superblock::kNumHalves + 4 * place) * num_blocks_;
    return _mm256_maskz_loadu_epi32(lanes_, data_ + at);
  }
  /// Bit v of each byte belongs to vector v, as in AddBitPlanes.
  [[gnu::always_inline]] void AddFifthBits(__m256i bits) {
    const __m256i mask = _mm256_set1_epi8(16);
    for (int v = 0; v < 8; ++v) {
      const __m256i moved = v < 4 ? _mm256_slli_epi16(bits, 4 - v) : _mm256_srli_epi16(bits, v - 4);
      codes_[v] = _mm256_or_si256(codes_[v], _mm256_and_si256(moved, mask));
    }
  }

  const std::uint8_t* data_;
  std::int64_t num_blocks_;
  __mmask8 lanes_;
  __m256i codes_[8];
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
