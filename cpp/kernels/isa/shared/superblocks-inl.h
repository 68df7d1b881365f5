// Readers of each layout of superblocks: quant/superblock.h, quant/lowbit.h.
//
// A superblock type has: kBytes; kBits, of its codes; kParts, the number of scales of a block of 32
// weights; kOffset, subtracted from every code; Scales(block, part) (f32[8]); Load and LoadGroup,
// the codes in eight vectors in which 4-byte lane j belongs to block j, so that block sums need no
// horizontal additions. Vectors of sixteen lanes take two superblocks at once. Layouts with minima
// add Minima (f32[8]): weight = scale * (code - kOffset) + minimum. Layouts whose rows may end in
// fewer blocks than eight add kNumHalves, the f16 of a block, and kNumWords, its words of four
// bytes.
#pragma once

#include <cstdint>

#include "kernels/isa/shared/groups-inl.h"
#include "quant/lowbit.h"
#include "quant/superblock.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Codes of three bits: 64 bytes of the lower two, and 32 bytes of third bits.
inline Codes LoadCodes3(const std::uint8_t* low, const std::uint8_t* high) {
  Codes codes = LoadCodes2(low);
  AddBitPlanes<2>(codes, high);
  return codes;
}
/// Codes of five bits: 128 bytes of the lower four, and 32 bytes of fifth bits.
inline Codes LoadCodes5(const std::uint8_t* low, const std::uint8_t* high) {
  Codes codes = LoadCodes4(low);
  AddBitPlanes<4>(codes, high);
  return codes;
}
/// Those of two superblocks, from their fifth bits, which the lower four follow.
template <class Group = GroupCodes>
inline Group LoadGroupCodes5(const std::uint8_t* first, const std::uint8_t* second) {
  if constexpr (requires(Group& codes) { AddBitPlanes<4>(codes, first, second); }) {
    Group codes = LoadGroupCodes4(first + 32, second + 32);
    AddBitPlanes<4>(codes, first, second);
    return codes;
  } else {
    return Beside(LoadCodes5(first + 32, first), LoadCodes5(second + 32, second));
  }
}

/// Base of the layouts that begin with eight f16 scales.
struct HalfScales {
  static constexpr int kParts = 1;
  static constexpr bool kHasMinima = false;
  static Scale8 Scales(const std::uint8_t* block, int) { return F16Strided8(block, 2); }
};

/// Base of the formats with blocks of 32: eight f16 scales, in some eight f16 minima, and words.
template <int kHalves, int kWords>
struct BlockSuperblock : HalfScales {
  static constexpr int kNumHalves = kHalves;
  static constexpr int kNumWords = kWords;
  static constexpr std::int64_t kWordsAt = 16 * kHalves;
  static constexpr std::int64_t kBytes = kWordsAt + 32 * kWords;
  static constexpr bool kHasMinima = kHalves == 2;
  static Scale8 Minima(const std::uint8_t* block) { return F16Strided8(block + 16, 2); }
};

template <int kHalves>
struct NibbleSuperblock : BlockSuperblock<kHalves, 4> {
  static constexpr std::int64_t kCodesAt = NibbleSuperblock::kWordsAt;
  static constexpr int kBits = 4;
  static Codes Load(const std::uint8_t* block) { return LoadCodes4(block + kCodesAt); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes4(first + kCodesAt, second + kCodesAt);
  }
};
struct Q4_0Superblock : NibbleSuperblock<1> {
  static constexpr float kOffset = 8.0F;
};
struct Q4_1Superblock : NibbleSuperblock<2> {
  static constexpr float kOffset = 0.0F;
};

template <int kHalves>
struct FiveBitSuperblock : BlockSuperblock<kHalves, 5> {
  static constexpr std::int64_t kHighAt = FiveBitSuperblock::kWordsAt;
  static constexpr int kBits = 5;
  static Codes Load(const std::uint8_t* block) {
    return LoadCodes5(block + kHighAt + 32, block + kHighAt);
  }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes5(first + kHighAt, second + kHighAt);
  }
};
struct Q5_0Superblock : FiveBitSuperblock<1> {
  static constexpr float kOffset = 16.0F;
};
struct Q5_1Superblock : FiveBitSuperblock<2> {
  static constexpr float kOffset = 0.0F;
};

struct Q8_0Superblock : BlockSuperblock<1, 8> {
  static constexpr int kBits = 8;
  static constexpr float kOffset = kInt8Bias;
  static constexpr bool kIsSigned = true;
  static Codes Load(const std::uint8_t* block) { return LoadCodes8(block + kWordsAt); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes8(first + kWordsAt, second + kWordsAt);
  }
};

template <class Superblock>
constexpr bool kIsSignedSuperblock = requires { Superblock::kIsSigned; };
template <class Superblock>
constexpr bool kHasTails = requires { Superblock::kNumHalves; };

/// The last blocks of rows, fewer than eight, as superblocks whose other blocks are zero. Rows of
/// layouts without tails have none.
template <class Superblock>
class TailSuperblock {
 public:
  struct Room {};
  explicit TailSuperblock(std::int64_t) {}
  static const std::uint8_t* Widen(const std::uint8_t* tail, Room&) { return tail; }
};
template <class Superblock>
  requires kHasTails<Superblock>
class TailSuperblock<Superblock> {
 public:
  struct Room {
    alignas(32) std::uint8_t bytes[Superblock::kWordsAt % 32 + Superblock::kBytes];
    /// Words begin at a multiple of 32: vectors are read soon after they were written.
    std::uint8_t* Start() { return bytes + Superblock::kWordsAt % 32; }
  };
  explicit TailSuperblock(std::int64_t columns)
      : count_(columns % kSuperblockWeights / 32), lanes_(count_) {}

  /// The superblock, in `room`. tail: the blocks, after at least one whole superblock.
  const std::uint8_t* Widen(const std::uint8_t* tail, Room& room) const {
    std::uint8_t* out = room.Start();
    for (int h = 0; h < Superblock::kNumHalves; ++h, tail += 2 * count_, out += 16) {
      lanes_.CopyHalves(tail, out);
    }
    for (int v = 0; v < Superblock::kNumWords; ++v, tail += 4 * count_, out += 32) {
      lanes_.CopyWords(tail, out);
    }
    return room.Start();
  }

 private:
  std::int64_t count_;
  TailLanes lanes_;
};

/// The last blocks of a row, at most eight, where vectors have room for twice as many: multiplied
/// as they lie, in vectors half as long, with the bits of a superblock beside one of zeros
/// (avx512/row_ends.h).
template <class Superblock>
class RowEnd;
template <class Superblock>
constexpr bool kHasRowEnds = requires { sizeof(RowEnd<Superblock>); };

struct Lowbit2Superblock : HalfScales {
  static constexpr std::int64_t kBytes = kLowbit2Bytes;
  static constexpr int kBits = 4;  // as many are added at once
  static constexpr float kOffset = 1.5F;
  static Codes Load(const std::uint8_t* block) { return LoadCodes2(block + kLowbitCodesAt); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return Beside(Load(first), Load(second));
  }
};
struct Lowbit3Superblock : HalfScales {
  static constexpr std::int64_t kBytes = kLowbit3Bytes;
  static constexpr int kBits = 4;
  static constexpr float kOffset = 3.5F;
  static Codes Load(const std::uint8_t* block) {
    return LoadCodes3(block + kLowbitCodesAt, block + kLowbit3HighBitsAt);
  }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return Beside(Load(first), Load(second));
  }
};

/// Base of Q4_K and Q5_K: six-bit scales and minima of the blocks.
struct SixBitMinima {
  static constexpr int kParts = 1;
  static constexpr bool kHasMinima = true;
  static constexpr float kOffset = 0.0F;
  static Scale8 Scales(const std::uint8_t* block, int) {
    return Mul8(FromFields8<0>(block + kSuperblockFieldsAt), BroadcastF16(block));
  }
  static Scale8 Minima(const std::uint8_t* block) {
    return Mul8(FromFields8<6>(block + kSuperblockFieldsAt), BroadcastF16(block + 2));
  }
};

struct Q4_KSuperblock : SixBitMinima {
  static constexpr CodePlaces kPlaces = kQ4_KSuperblockPlaces;
  static constexpr std::int64_t kBytes = Q4_KGroup::kBlockBytes;
  static constexpr std::int64_t kCodesAt = kPlaces.low_at;
  static constexpr int kBits = 4;
  static Codes Load(const std::uint8_t* block) { return LoadCodes4(block + kPlaces.low_at); }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes4(first + kPlaces.low_at, second + kPlaces.low_at);
  }
};
struct Q5_KSuperblock : SixBitMinima {
  static constexpr CodePlaces kPlaces = kQ5_KSuperblockPlaces;
  static_assert(kPlaces.low_at == kPlaces.high_at + 32);
  static constexpr std::int64_t kBytes = Q5_KGroup::kBlockBytes;
  static constexpr int kBits = 5;
  static Codes Load(const std::uint8_t* block) {
    return LoadCodes5(block + kPlaces.low_at, block + kPlaces.high_at);
  }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return LoadGroupCodes5(first + kPlaces.high_at, second + kPlaces.high_at);
  }
};

/// Rows of codes that all lie in 4 bits, at kCodesAt, as sums of rows take them: Add and AddTwo
/// have the bits of AxpySink. Only if an instruction set can do better than unpack integers to
/// memory (avx512/nibble_rows.h).
template <class Superblock>
struct NibbleRows;
template <class Superblock>
constexpr bool kHasNibbleRows = requires { sizeof(NibbleRows<Superblock>); };

/// An int8 scale for each half of a block.
struct Q6_KSuperblock {
  static constexpr CodePlaces kPlaces = kQ6_KSuperblockPlaces;
  static constexpr std::int64_t kBytes = Q6_KGroup::kBlockBytes;
  static constexpr int kBits = 6;
  static constexpr int kParts = 2;
  static constexpr bool kHasMinima = false;
  static constexpr float kOffset = 32.0F;
  static Scale8 Scales(const std::uint8_t* block, int part) {
    const Scale8 scales = FromSignedBytes8(block + kQ6_KScalesAt + 8 * part);
    return Mul8(scales, Broadcast8(ScalarF16(block + kQ6_KScaleAt)));
  }
  static Codes Load(const std::uint8_t* block) {
    return LoadCodes6(block + kPlaces.low_at, block + kPlaces.high_at);
  }
  static GroupCodes LoadGroup(const std::uint8_t* first, const std::uint8_t* second) {
    return Beside(Load(first), Load(second));
  }
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
