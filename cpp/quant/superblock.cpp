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

// Q4_0: words of nibbles move as they are.
constexpr std::int64_t kBlockBytes = 18;
constexpr std::int64_t kScaleBytes = 2;
constexpr std::int64_t kWordsPerBlock = 4;
constexpr std::int64_t kNibblesAt = kBlocks * kScaleBytes;

/// Offset of word v of block j in a superblock.
constexpr std::int64_t WordAt(std::int64_t block, std::int64_t word) {
  return kNibblesAt + kWordBytes * (kBlocks * word + block);
}

void UnpackQ4_0Superblock(const std::uint8_t* superblock, std::uint8_t* blocks) {
  for (std::int64_t j = 0; j < kBlocks; ++j) {
    std::uint8_t* block = blocks + j * kBlockBytes;
    std::memcpy(block, superblock + j * kScaleBytes, kScaleBytes);
    for (std::int64_t v = 0; v < kWordsPerBlock; ++v) {
      std::memcpy(block + kScaleBytes + v * kWordBytes, superblock + WordAt(j, v), kWordBytes);
    }
  }
}

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

using MoveFn = void (*)(const std::uint8_t* source, std::uint8_t* target);

/// Changes the sign of the half that minima are multiplied with.
void CopyHalvesNegatingMinimum(const std::uint8_t* source, std::uint8_t* target) {
  std::memcpy(target, source, 2 * kScaleBytes);
  target[3] ^= 0x80;
}

/// Q4_K and Q5_K. Files keep the six bits of scales j and minima j, j < 4, in bytes j and 4 + j,
/// the lower four of those that follow in the halves of byte 8 + j, and their upper two on top of
/// bytes j and 4 + j.
template <CodePlaces kSource, CodePlaces kTarget>
void PackWithMinima(const std::uint8_t* block, std::uint8_t* superblock) {
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
void UnpackWithMinima(const std::uint8_t* superblock, std::uint8_t* block) {
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
void PackQ6_K(const std::uint8_t* block, std::uint8_t* superblock) {
  MoveCodes<kQ6_KPlaces, kQ6_KSuperblockPlaces>(block, superblock);
  for (std::int64_t i = 0; i < 2 * kBlocks; ++i) {
    superblock[kQ6_KScalesAt + i] = block[kQ6_KScalesAt + 2 * (i % kBlocks) + i / kBlocks];
  }
  std::memcpy(superblock + kQ6_KScaleAt, block + kQ6_KScaleAt, kScaleBytes);
}
void UnpackQ6_K(const std::uint8_t* superblock, std::uint8_t* block) {
  MoveCodes<kQ6_KSuperblockPlaces, kQ6_KPlaces>(superblock, block);
  for (std::int64_t i = 0; i < 2 * kBlocks; ++i) {
    block[kQ6_KScalesAt + 2 * (i % kBlocks) + i / kBlocks] = superblock[kQ6_KScalesAt + i];
  }
  std::memcpy(block + kQ6_KScaleAt, superblock + kQ6_KScaleAt, kScaleBytes);
}

struct Layout {
  Format file, superblock;
  MoveFn pack, unpack;  ///< of one superblock
};
constexpr Layout kLayouts[] = {
    {Format::kQ4_0, Format::kQ4_0Superblock, PackQ4_0Superblock, UnpackQ4_0Superblock},
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
  const std::int64_t count = num_rows * (columns / kSuperblockWeights);
  const std::int64_t num_bytes = InfoOf(superblock).block_bytes;
  for (std::int64_t i = 0; i < count; ++i)
    move(source + i * num_bytes, destination + i * num_bytes);
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

void PackQ4_0Superblock(const std::uint8_t* blocks, std::uint8_t* superblock) {
  for (std::int64_t j = 0; j < kBlocks; ++j) {
    const std::uint8_t* block = blocks + j * kBlockBytes;
    std::memcpy(superblock + j * kScaleBytes, block, kScaleBytes);
    for (std::int64_t v = 0; v < kWordsPerBlock; ++v) {
      std::memcpy(superblock + WordAt(j, v), block + kScaleBytes + v * kWordBytes, kWordBytes);
    }
  }
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
