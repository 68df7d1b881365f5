// Q4_0 rows repacked so that vector lanes are blocks: a lossless reordering, no byte added.
//
// A superblock holds 8 Q4_0 blocks (256 weights) in 144 bytes: eight f16 scales, then 128 nibble
// bytes in four 32-byte vectors. Byte 32 v + 4 j + k is byte 4 v + k of block j, so 4-byte lane j
// of every vector belongs to block j: low nibbles are its weights 4 v + k, high nibbles 16 + 4 v +
// k. A kernel adds up the eight vectors and has the eight block sums in its eight 32-bit lanes.
#pragma once

#include <cstdint>

namespace powerinfer {

inline constexpr std::int64_t kSuperblockWeights = 256;
inline constexpr std::int64_t kSuperblockBytes = 144;

/// One superblock from 8 consecutive Q4_0 blocks, and back. Source and destination: 144 bytes each,
/// not overlapping.
void PackSuperblock(const std::uint8_t* blocks, std::uint8_t* superblock);
void UnpackSuperblock(const std::uint8_t* superblock, std::uint8_t* blocks);

/// Repacks whole rows of q4_0[num_rows, columns], columns a multiple of 256. Rows keep their place
/// and size (columns / 256 * 144 bytes), so callers split the rows over threads as they like and
/// skip rows freely. source and destination must not overlap.
void RepackQ4_0ToSuperblock(const std::uint8_t* source, std::int64_t num_rows, std::int64_t columns,
                            std::uint8_t* destination);
/// The inverse, bit for bit.
void RepackSuperblockToQ4_0(const std::uint8_t* source, std::int64_t num_rows, std::int64_t columns,
                            std::uint8_t* destination);

}  // namespace powerinfer
