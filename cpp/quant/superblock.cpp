#include "quant/superblock.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <stdexcept>

namespace powerinfer {
namespace {

constexpr std::int64_t kBlocks = 8;
constexpr std::int64_t kWordBytes = 4;
constexpr std::int64_t kLowBytes = kSuperblockWeights / 2;
constexpr std::int64_t kFieldBytes = 12;

// Formats with blocks of 32: halves, in some a word of fifth bits, and words of codes, all of which
// move as they are but for the order of the fifth bits.
constexpr std::int64_t kScaleBytes = 2;

/// Bytes in which bit v of byte k is bit 4 v + k of `bits`.
std::uint32_t BitsByCode(std::uint32_t bits) {
  std::uint32_t bytes = 0;
  for (int k = 0; k < 4; ++k) {
    std::uint32_t byte = (bits >> k) & 0x11111111U;
    byte = (byte | byte >> 3) & 0x03030303U;
    byte = (byte | byte >> 6) & 0x000F000FU;
    byte = (byte | byte >> 12) & 0xFFU;
    bytes |= byte << (8 * k);
  }
  return bytes;
}
/// The inverse.
std::uint32_t BitsByVector(std::uint32_t bytes) {
  std::uint32_t bits = 0;
  for (int k = 0; k < 4; ++k) {
    std::uint32_t byte = (bytes >> (8 * k)) & 0xFFU;
    byte = (byte | byte << 12) & 0x000F000FU;
    byte = (byte | byte << 6) & 0x03030303U;
    byte = (byte | byte << 3) & 0x11111111U;
    bits |= byte << k;
  }
  return bits;
}

/// A copy of the word at `source` with its bits in another order.
template <std::uint32_t (*kReorder)(std::uint32_t)>
void MoveBits(const std::uint8_t* source, std::uint8_t* target) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, source, sizeof bits);
  bits = kReorder(bits);
  std::memcpy(target, &bits, sizeof bits);
}

/// `num_blocks` blocks of 32, at most eight, there and back.
template <int kHalves, bool kHasHigh, int kWords>
struct Blocks {
  static constexpr std::int64_t kHighAt = kHalves * kScaleBytes;
  static constexpr std::int64_t kWordsAt = kHighAt + (kHasHigh ? kWordBytes : 0);
  static constexpr std::int64_t kBytes = kWordsAt + kWords * kWordBytes;

  static void Pack(const std::uint8_t* blocks, std::int64_t num_blocks, std::uint8_t* packed) {
    for (std::int64_t j = 0; j < num_blocks; ++j) {
      const std::uint8_t* block = blocks + j * kBytes;
      for (std::int64_t h = 0; h < kHalves; ++h) {
        std::memcpy(packed + kScaleBytes * (num_blocks * h + j), block + kScaleBytes * h,
                    kScaleBytes);
      }
      if constexpr (kHasHigh) {
        MoveBits<BitsByCode>(block + kHighAt, packed + kHighAt * num_blocks + kWordBytes * j);
      }
      std::uint8_t* words = packed + kWordsAt * num_blocks + kWordBytes * j;
      for (std::int64_t v = 0; v < kWords; ++v) {
        std::memcpy(words + kWordBytes * num_blocks * v, block + kWordsAt + kWordBytes * v,
                    kWordBytes);
      }
    }
  }

  static void Unpack(const std::uint8_t* packed, std::int64_t num_blocks, std::uint8_t* blocks) {
    for (std::int64_t j = 0; j < num_blocks; ++j) {
      std::uint8_t* block = blocks + j * kBytes;
      for (std::int64_t h = 0; h < kHalves; ++h) {
        std::memcpy(block + kScaleBytes * h, packed + kScaleBytes * (num_blocks * h + j),
                    kScaleBytes);
      }
      if constexpr (kHasHigh) {
        MoveBits<BitsByVector>(packed + kHighAt * num_blocks + kWordBytes * j, block + kHighAt);
      }
      const std::uint8_t* words = packed + kWordsAt * num_blocks + kWordBytes * j;
      for (std::int64_t v = 0; v < kWords; ++v) {
        std::memcpy(block + kWordsAt + kWordBytes * v, words + kWordBytes * num_blocks * v,
                    kWordBytes);
      }
    }
  }
};
using Q4_0Blocks = Blocks<1, false, 4>;
using Q4_1Blocks = Blocks<2, false, 4>;
using Q5_0Blocks = Blocks<1, true, 4>;
using Q5_1Blocks = Blocks<2, true, 4>;
using Q8_0Blocks = Blocks<1, false, 8>;

// K formats: codes are taken apart, their words put in order, and packed again.
constexpr CodePlaces kQ4_KPlaces = {16, 32};
constexpr CodePlaces kQ5_KPlaces = {48, 32, 16, 32, 1};
constexpr CodePlaces kQ6_KPlaces = {0, 64, 128, 32, 2};

template <CodePlaces kPlaces>
void LoadCodes(const std::uint8_t* block, std::uint8_t* codes) {
  const std::uint8_t* low = block + kPlaces.low_at;
  for (std::int64_t at = 0; at < kLowBytes; at += kPlaces.low_chunk) {
    std::uint8_t* out = codes + 2 * at;
    for (std::int64_t i = 0; i < kPlaces.low_chunk; ++i) {
      out[i] = low[at + i] & 15;
      out[kPlaces.low_chunk + i] = static_cast<std::uint8_t>(low[at + i] >> 4);
    }
  }
  if constexpr (kPlaces.high_bits > 0) {
    constexpr std::int64_t kFields = 8 / kPlaces.high_bits;
    constexpr int kMask = (1 << kPlaces.high_bits) - 1;
    const std::uint8_t* high = block + kPlaces.high_at;
    for (std::int64_t first = 0; first < kSuperblockWeights; first += kPlaces.high_chunk) {
      const std::int64_t field = first / kPlaces.high_chunk % kFields;
      const std::int64_t at = first / (kPlaces.high_chunk * kFields) * kPlaces.high_chunk;
      for (std::int64_t i = 0; i < kPlaces.high_chunk; ++i) {
        const int bits = (high[at + i] >> (kPlaces.high_bits * field)) & kMask;
        codes[first + i] = static_cast<std::uint8_t>(codes[first + i] | (bits << 4));
      }
    }
  }
}

template <CodePlaces kPlaces>
void StoreCodes(const std::uint8_t* codes, std::uint8_t* block) {
  std::uint8_t* low = block + kPlaces.low_at;
  for (std::int64_t at = 0; at < kLowBytes; at += kPlaces.low_chunk) {
    const std::uint8_t* in = codes + 2 * at;
    for (std::int64_t i = 0; i < kPlaces.low_chunk; ++i) {
      low[at + i] = static_cast<std::uint8_t>((in[i] & 15) | (in[kPlaces.low_chunk + i] << 4));
    }
  }
  if constexpr (kPlaces.high_bits > 0) {
    constexpr std::int64_t kFields = 8 / kPlaces.high_bits;
    std::uint8_t* high = block + kPlaces.high_at;
    std::memset(high, 0, kSuperblockWeights / kFields);
    for (std::int64_t first = 0; first < kSuperblockWeights; first += kPlaces.high_chunk) {
      const std::int64_t field = first / kPlaces.high_chunk % kFields;
      const std::int64_t at = first / (kPlaces.high_chunk * kFields) * kPlaces.high_chunk;
      for (std::int64_t i = 0; i < kPlaces.high_chunk; ++i) {
        const int bits = (codes[first + i] >> 4) << (kPlaces.high_bits * field);
        high[at + i] = static_cast<std::uint8_t>(high[at + i] | bits);
      }
    }
  }
}

template <CodePlaces kSource, CodePlaces kTarget>
void MoveCodes(const std::uint8_t* source, std::uint8_t* target) {
  std::uint8_t codes[kSuperblockWeights] = {};
  std::uint8_t moved[kSuperblockWeights] = {};
  LoadCodes<kSource>(source, codes);
  // An 8 x 8 transpose of words, its own inverse.
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    for (std::int64_t j = 0; j < kBlocks; ++j) {
      std::memcpy(moved + kWordBytes * (kBlocks * i + j), codes + kWordBytes * (kBlocks * j + i),
                  kWordBytes);
    }
  }
  StoreCodes<kTarget>(moved, target);
}

/// Moves the blocks of a superblock, or the last ones of a row. (Those of K formats are always
/// whole.)
using MoveFn = void (*)(const std::uint8_t* source, std::int64_t num_blocks, std::uint8_t* target);

/// Changes the sign of the half that minima are multiplied with.
void CopyHalvesNegatingMinimum(const std::uint8_t* source, std::uint8_t* target) {
  std::memcpy(target, source, 2 * kScaleBytes);
  target[3] ^= 0x80;
}

/// Q4_K and Q5_K. Files keep the six bits of scales j and minima j, j < 4, in bytes j and 4 + j,
/// the lower four of those that follow in the halves of byte 8 + j, and their upper two on top of
/// bytes j and 4 + j.
template <CodePlaces kSource, CodePlaces kTarget>
void PackWithMinima(const std::uint8_t* block, std::int64_t, std::uint8_t* superblock) {
  CopyHalvesNegatingMinimum(block, superblock);
  const std::uint8_t* packed = block + kSuperblockFieldsAt;
  std::uint8_t* fields = superblock + kSuperblockFieldsAt;
  std::memset(fields, 0, kFieldBytes);
  for (std::int64_t j = 0; j < kBlocks; ++j) {
    const int scale = packed[j % 4], minimum = packed[4 + j % 4], both = packed[8 + j % 4];
    const int field = j < 4 ? (scale & 63) | (minimum & 63) << 6
                            : (both & 15) | scale >> 6 << 4 | (both >> 4 | minimum >> 6 << 4) << 6;
    const int word = field << (j % 2 * 4);
    std::uint8_t* at = fields + 3 * j / 2;
    at[0] = static_cast<std::uint8_t>(at[0] | (word & 255));
    at[1] = static_cast<std::uint8_t>(at[1] | word >> 8);
  }
  MoveCodes<kSource, kTarget>(block, superblock);
}

template <CodePlaces kSource, CodePlaces kTarget>
void UnpackWithMinima(const std::uint8_t* superblock, std::int64_t, std::uint8_t* block) {
  CopyHalvesNegatingMinimum(superblock, block);
  const std::uint8_t* fields = superblock + kSuperblockFieldsAt;
  std::uint8_t* packed = block + kSuperblockFieldsAt;
  const auto field = [&](std::int64_t j) {
    const std::uint8_t* at = fields + 3 * j / 2;
    return (at[0] | at[1] << 8) >> (j % 2 * 4);
  };
  for (std::int64_t j = 0; j < 4; ++j) {
    const int early = field(j), late = field(4 + j);
    packed[j] = static_cast<std::uint8_t>((early & 63) | (late >> 4 & 3) << 6);
    packed[4 + j] = static_cast<std::uint8_t>((early >> 6 & 63) | (late >> 10 & 3) << 6);
    packed[8 + j] = static_cast<std::uint8_t>((late & 15) | (late >> 6 & 15) << 4);
  }
  MoveCodes<kSource, kTarget>(superblock, block);
}

/// Scale `part` of block j of Q6_K: byte 2 j + part in files, 8 part + j in superblocks.
void PackQ6_K(const std::uint8_t* block, std::int64_t, std::uint8_t* superblock) {
  MoveCodes<kQ6_KPlaces, kQ6_KSuperblockPlaces>(block, superblock);
  for (std::int64_t i = 0; i < 2 * kBlocks; ++i) {
    superblock[kQ6_KScalesAt + i] = block[kQ6_KScalesAt + 2 * (i % kBlocks) + i / kBlocks];
  }
  std::memcpy(superblock + kQ6_KScaleAt, block + kQ6_KScaleAt, kScaleBytes);
}
void UnpackQ6_K(const std::uint8_t* superblock, std::int64_t, std::uint8_t* block) {
  MoveCodes<kQ6_KSuperblockPlaces, kQ6_KPlaces>(superblock, block);
  for (std::int64_t i = 0; i < 2 * kBlocks; ++i) {
    block[kQ6_KScalesAt + 2 * (i % kBlocks) + i / kBlocks] = superblock[kQ6_KScalesAt + i];
  }
  std::memcpy(block + kQ6_KScaleAt, superblock + kQ6_KScaleAt, kScaleBytes);
}

struct Layout {
  Format file, superblock;
  MoveFn pack, unpack;
};
constexpr Layout kLayouts[] = {
    {Format::kQ4_0, Format::kQ4_0Superblock, Q4_0Blocks::Pack, Q4_0Blocks::Unpack},
    {Format::kQ4_1, Format::kQ4_1Superblock, Q4_1Blocks::Pack, Q4_1Blocks::Unpack},
    {Format::kQ5_0, Format::kQ5_0Superblock, Q5_0Blocks::Pack, Q5_0Blocks::Unpack},
    {Format::kQ5_1, Format::kQ5_1Superblock, Q5_1Blocks::Pack, Q5_1Blocks::Unpack},
    {Format::kQ8_0, Format::kQ8_0Superblock, Q8_0Blocks::Pack, Q8_0Blocks::Unpack},
    {Format::kQ4_K, Format::kQ4_KSuperblock, PackWithMinima<kQ4_KPlaces, kQ4_KSuperblockPlaces>,
     UnpackWithMinima<kQ4_KSuperblockPlaces, kQ4_KPlaces>},
    {Format::kQ5_K, Format::kQ5_KSuperblock, PackWithMinima<kQ5_KPlaces, kQ5_KSuperblockPlaces>,
     UnpackWithMinima<kQ5_KSuperblockPlaces, kQ5_KPlaces>},
    {Format::kQ6_K, Format::kQ6_KSuperblock, PackQ6_K, UnpackQ6_K},
};

const Layout& LayoutOfFile(Format format) {
  const auto* layout = std::ranges::find(kLayouts, format, &Layout::file);
  if (layout == std::end(kLayouts)) throw std::invalid_argument("a format without superblocks");
  return *layout;
}

void MoveRows(Format superblock, MoveFn move, const std::uint8_t* source, std::int64_t num_rows,
              std::int64_t columns, std::uint8_t* destination) {
  const std::int64_t num_bytes = InfoOf(superblock).block_bytes;
  const std::int64_t last_blocks = columns % kSuperblockWeights / 32;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (std::int64_t i = 0; i < columns / kSuperblockWeights; ++i) {
      move(source, kBlocks, destination);
      source += num_bytes;
      destination += num_bytes;
    }
    if (last_blocks == 0) continue;
    move(source, last_blocks, destination);
    source += last_blocks * num_bytes / kBlocks;
    destination += last_blocks * num_bytes / kBlocks;
  }
}

}  // namespace

Format SuperblockFormat(Format format) {
  for (const Layout& layout : kLayouts) {
    if (layout.file == format) return layout.superblock;
  }
  return format;
}

Format FileFormat(Format format) {
  for (const Layout& layout : kLayouts) {
    if (layout.superblock == format) return layout.file;
  }
  return format;
}

bool CanRepack(Format format, std::int64_t columns) {
  return SuperblockFormat(format) != format && columns >= kSuperblockWeights &&
         columns % InfoOf(format).block_size == 0;
}

void PackQ4_0Superblock(const std::uint8_t* blocks, std::uint8_t* superblock) {
  Q4_0Blocks::Pack(blocks, kBlocks, superblock);
}

void RepackToSuperblocks(Format format, const std::uint8_t* source, std::int64_t num_rows,
                         std::int64_t columns, std::uint8_t* destination) {
  const Layout& layout = LayoutOfFile(format);
  MoveRows(layout.superblock, layout.pack, source, num_rows, columns, destination);
}

void RepackFromSuperblocks(Format format, const std::uint8_t* source, std::int64_t num_rows,
                           std::int64_t columns, std::uint8_t* destination) {
  const Layout& layout = LayoutOfFile(format);
  MoveRows(layout.superblock, layout.unpack, source, num_rows, columns, destination);
}

}  // namespace powerinfer
