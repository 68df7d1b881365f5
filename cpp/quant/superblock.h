// Rows repacked so that vector lanes are blocks: a lossless reordering, no byte added.
//
// A superblock holds 256 weights, 8 blocks of 32. Its codes are cut into words of four, and word v
// of block j becomes 4-byte lane j of vector v: a kernel adds up the eight vectors and has the
// eight block sums in its eight 32-bit lanes. With codes of that order in c (code 4 v + k of block
// j is c[32 v + 4 j + k]) the bytes are:
//   Q4_0 (144): f16 scales[8]; u8 low[128]
//   Q4_1 (160): f16 scales[8]; f16 minima[8]; u8 low[128]
//   Q5_0 (176): f16 scales[8]; u8 high[32]; u8 low[128]
//   Q5_1 (192): f16 scales[8]; f16 minima[8]; u8 high[32]; u8 low[128]
//   Q8_0 (272): f16 scales[8]; i8 c[256]
//   Q4_K (144): f16 scale; f16 -minimum; fields[8] of 12 bits, the lowest bit first, of which the
//               lower six are the scale of a block and the upper six its minimum; u8 low[128]
//   Q5_K (176): the same 16 bytes; u8 high[32]; u8 low[128]
//   Q6_K (210): u8 low[128]; u8 high[64]; i8 scales[2, 8], of the first halves of all blocks, then
//               of the second ones; f16 scale
// where low[i] holds the lower four bits of c[i] and, above them, of c[128 + i]; the fifth bit of
// c[32 v + i] is bit v of high[i] in Q5_0, Q5_1 and Q5_K, and the two highest bits of c[64 f + i]
// are bits 2 f and 2 f + 1 of high[i] in Q6_K.
//
// Rows of the first five, whose files have blocks of 32, may end in fewer blocks than eight. They
// follow the whole superblocks in the same order without the bytes of the blocks that are missing:
// n blocks of Q4_1 are f16 scales[n]; f16 minima[n]; u8 low[4][4 n].
#pragma once

#include <cstdint>

#include "quant/formats.h"

namespace powerinfer {

inline constexpr std::int64_t kSuperblockWeights = 256;
inline constexpr std::int64_t kSuperblockBytes = 144;  ///< of Q4_0

/// Places of the codes of a block of 256 weights: the lower four bits in 128 bytes in which every
/// `low_chunk` bytes hold the codes of as many weights, then those of as many that follow; the
/// other bits likewise by chunks of `high_chunk` bytes, high_bits a code.
struct CodePlaces {
  std::int64_t low_at, low_chunk;
  std::int64_t high_at = 0, high_chunk = 0, high_bits = 0;
};
inline constexpr CodePlaces kQ4_KSuperblockPlaces = {16, 128};
inline constexpr CodePlaces kQ5_KSuperblockPlaces = {48, 128, 16, 32, 1};
inline constexpr CodePlaces kQ6_KSuperblockPlaces = {0, 128, 128, 64, 2};
/// The fields of Q4_K and Q5_K.
inline constexpr std::int64_t kSuperblockFieldsAt = 4;
/// The scales of Q6_K, in blocks of files and in superblocks.
inline constexpr std::int64_t kQ6_KScalesAt = 192, kQ6_KScaleAt = 208;

/// The layout of superblocks that holds a format of files, or the format itself if none does.
Format SuperblockFormat(Format format);
/// The format of files that a layout of superblocks holds, or the format itself.
Format FileFormat(Format format);
/// True if rows of `columns` weights of a format of files can be repacked: whole superblocks, or at
/// least one and some blocks.
bool CanRepack(Format format, std::int64_t columns);

/// One Q4_0 superblock from 8 consecutive blocks: 144 bytes each, not overlapping.
void PackQ4_0Superblock(const std::uint8_t* blocks, std::uint8_t* superblock);

/// Repacks whole rows of `format`[num_rows, columns], for which CanRepack is true. Rows keep their
/// place and size, so callers split the rows over threads as they like and skip rows freely. source
/// and destination must not overlap. Throws std::invalid_argument for a format without superblocks.
void RepackToSuperblocks(Format format, const std::uint8_t* source, std::int64_t num_rows,
                         std::int64_t columns, std::uint8_t* destination);
/// The inverse, bit for bit; `format` is that of files too.
void RepackFromSuperblocks(Format format, const std::uint8_t* source, std::int64_t num_rows,
                           std::int64_t columns, std::uint8_t* destination);

}  // namespace powerinfer
