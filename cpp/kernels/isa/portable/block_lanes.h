// Vectors whose eight 32-bit lanes are blocks of 32 weights: the unit of products in which many
// tokens share a row, in plain C++.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/isa/portable/blocks.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// Blocks of a group, one per lane.
constexpr std::int64_t kBlockLanes = 8;
/// Four codes of each block: 4-byte lane j belongs to block j.
struct CodeVec {
  std::int8_t value[32];
};
struct BlockInts {
  std::int32_t lane[8];
};
using BlockFloats = Scale8;

/// Rows and tokens of a register tile, and tokens of one row with a list of them.
constexpr int kTileRows = 1;
constexpr int kTileTokens = 1;
constexpr int kListedTokens = 1;
/// Rows and tokens of a tile of decode rows (superblocks): a single row if there is one token.
constexpr int kDotTileRows = 1;
constexpr int kDotTileTokens = 4;

inline CodeVec LoadCodeVec(const void* p) {
  CodeVec result;
  std::memcpy(result.value, p, sizeof result.value);
  return result;
}
/// Keeps the compiler from loading a vector again wherever it is used.
inline void KeepInRegister(CodeVec&) {}
inline BlockInts LoadInts(const std::int32_t* p) {
  BlockInts result;
  std::memcpy(result.lane, p, sizeof result.lane);
  return result;
}
inline void StoreInts(std::int32_t* p, const BlockInts& v) {
  std::memcpy(p, v.lane, sizeof v.lane);
}
inline BlockFloats LoadFloats(const float* p) { return Load8(p); }
inline void StoreFloats(float* p, const BlockFloats& v) { Store8(p, v); }
inline BlockFloats BroadcastFloats(float value) { return Broadcast8(value); }
inline BlockFloats MulFloats(const BlockFloats& a, const BlockFloats& b) { return Mul8(a, b); }
inline BlockFloats FmaFloats(const BlockFloats& a, const BlockFloats& b, const BlockFloats& c) {
  return Fma8(a, b, c);
}
inline BlockFloats ToFloats(const BlockInts& v) {
  BlockFloats result;
  for (int j = 0; j < 8; ++j) result.lane[j] = static_cast<float>(v.lane[j]);
  return result;
}
inline float SumFloats(const BlockFloats& v) { return Sum8(v); }
/// out[i] = SumFloats(v[i]), i < 4, with its bits.
inline void StoreSums4(const BlockFloats* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = SumFloats(v[i]);
}

/// Offset of unpacked codes above the signed weights, for a format whose own codes begin kNatural
/// below zero. None here: dot products take signed codes.
template <int kNatural>
constexpr int kStoredOffset = 0;

/// The integer sums of a group's blocks over its vectors 0 to 7, in this order. Codes are of kBits
/// bits, offset included; kNatural as above.
template <int kBits, int kNatural>
class BlockDots {
 public:
  BlockDots() = default;
  explicit BlockDots(const BlockInts& first) : sum_(first) {}
  template <int kVector>
  void Add(const CodeVec& codes, const CodeVec& x) {
    for (int i = 0; i < 32; ++i) sum_.lane[i / 4] += codes.value[i] * x.value[i];
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

/// The same for signed codes of eight bits, to which LoadCodes8 has added its bias.
using SignedDots = BlockDots<8, 0>;

inline BlockInts ZeroInts() { return {}; }
inline BlockInts AddInts(BlockInts a, const BlockInts& b) {
  for (int j = 0; j < 8; ++j) a.lane[j] += b.lane[j];
  return a;
}
/// v * -kFactor
template <int kFactor>
inline BlockInts MinusTimes(BlockInts v) {
  for (std::int32_t& lane : v.lane) lane *= -kFactor;
  return v;
}

/// The codes of a group's superblocks; with eight lanes a group is one superblock, and the second
/// pointer is not used.
struct GroupCodes {
  CodeVec vector[8];
};
inline GroupCodes Beside(const Codes& first, const Codes&) {
  GroupCodes codes;
  std::memcpy(codes.vector, first.code, sizeof first.code);
  return codes;
}
inline GroupCodes LoadGroupCodes4(const std::uint8_t* first, const std::uint8_t*) {
  const Codes codes = LoadCodes4(first);
  return Beside(codes, codes);
}
inline GroupCodes LoadGroupCodes8(const std::uint8_t* first, const std::uint8_t*) {
  const Codes codes = LoadCodes8(first);
  return Beside(codes, codes);
}
/// The scales of a group's superblocks.
inline BlockFloats Beside(const Scale8& first, const Scale8&) { return first; }

/// Sums of the bytes of each lane over four vectors that lie together.
inline BlockInts SumVectors(const std::int8_t* vectors) {
  BlockInts sums = {};
  for (int i = 0; i < 128; ++i) sums.lane[i % 32 / 4] += vectors[i];
  return sums;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
