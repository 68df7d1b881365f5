#include "quant/superblock.h"

#include <cstring>

namespace powerinfer {
namespace {

constexpr std::int64_t kBlocks = 8;
constexpr std::int64_t kBlockBytes = 18;
constexpr std::int64_t kScaleBytes = 2;
constexpr std::int64_t kWordBytes = 4;
constexpr std::int64_t kWordsPerBlock = 4;
constexpr std::int64_t kNibblesAt = kBlocks * kScaleBytes;

/// Where word v of block j lies in a superblock.
constexpr std::int64_t WordAt(std::int64_t block, std::int64_t word) {
  return kNibblesAt + kWordBytes * (kBlocks * word + block);
}

}  // namespace

void PackSuperblock(const std::uint8_t* blocks, std::uint8_t* superblock) {
  for (std::int64_t j = 0; j < kBlocks; ++j) {
    const std::uint8_t* block = blocks + j * kBlockBytes;
    std::memcpy(superblock + j * kScaleBytes, block, kScaleBytes);
    for (std::int64_t v = 0; v < kWordsPerBlock; ++v) {
      std::memcpy(superblock + WordAt(j, v), block + kScaleBytes + v * kWordBytes, kWordBytes);
    }
  }
}

void UnpackSuperblock(const std::uint8_t* superblock, std::uint8_t* blocks) {
  for (std::int64_t j = 0; j < kBlocks; ++j) {
    std::uint8_t* block = blocks + j * kBlockBytes;
    std::memcpy(block, superblock + j * kScaleBytes, kScaleBytes);
    for (std::int64_t v = 0; v < kWordsPerBlock; ++v) {
      std::memcpy(block + kScaleBytes + v * kWordBytes, superblock + WordAt(j, v), kWordBytes);
    }
  }
}

void RepackQ4_0ToSuperblock(const std::uint8_t* source, std::int64_t num_rows, std::int64_t columns,
                            std::uint8_t* destination) {
  const std::int64_t count = num_rows * (columns / kSuperblockWeights);
  for (std::int64_t i = 0; i < count; ++i) {
    PackSuperblock(source + i * kSuperblockBytes, destination + i * kSuperblockBytes);
  }
}

void RepackSuperblockToQ4_0(const std::uint8_t* source, std::int64_t num_rows, std::int64_t columns,
                            std::uint8_t* destination) {
  const std::int64_t count = num_rows * (columns / kSuperblockWeights);
  for (std::int64_t i = 0; i < count; ++i) {
    UnpackSuperblock(source + i * kSuperblockBytes, destination + i * kSuperblockBytes);
  }
}

}  // namespace powerinfer
