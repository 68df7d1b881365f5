// Layouts of the coarse copies of weights that predictors read: 2 bits, 3 bits, or the sign.
//
// All have superblocks of 256 weights = 8 blocks of 32. lowbit2 and lowbit3 order their codes like
// Q4_0 superblocks (superblock.h), so one permuted copy of the activations serves all three: in
// every 32-byte vector, 4-byte lane j belongs to block j. With code(j, i) that of weight i of block
// j, and i = 4 v + k for v in [0, 8), k in [0, 4):
//
//   lowbit2 (80 bytes):  f16 scales[8]; u8 low[64], where bits 2 p, 2 p + 1 of byte 32 u + 4 j + k
//                        are code(j, 4 (2 p + u) + k).   weight = scales[j] * (code - 1.5)
//   lowbit3 (112 bytes): f16 scales[8]; low[64] as above, of the codes' two low bits; u8 high[32],
//                        where bit v of byte 4 j + k is bit 2 of code(j, 4 v + k).
//                        weight = scales[j] * (code - 3.5)
//   sign (34 bytes):     u8 bits[32], where bit i % 8 of byte i / 8 is set if weight i is negative;
//                        f16 scale.   weight = -scale or +scale
#pragma once

#include <cstdint>

namespace powerinfer {

inline constexpr std::int64_t kLowbit2Bytes = 80;
inline constexpr std::int64_t kLowbit3Bytes = 112;
inline constexpr std::int64_t kSignBytes = 34;
inline constexpr std::int64_t kLowbitCodesAt = 16;      ///< low[64] of both
inline constexpr std::int64_t kLowbit3HighBitsAt = 80;  ///< high[32]
inline constexpr std::int64_t kSignScaleAt = 32;

/// The steps an encoder starts from, in units of the block's root mean square: the best uniform
/// quantizers of a normal distribution with 4 and 8 levels (Max, 1960).
inline constexpr float kLowbit2Step = 0.996F;
inline constexpr float kLowbit3Step = 0.586F;
/// Rounds in which codes are chosen and the step is fitted to them by least squares.
inline constexpr std::int32_t kLowbitFits = 2;

}  // namespace powerinfer
