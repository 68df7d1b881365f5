// Vectors whose eight 32-bit lanes are blocks, in two registers; see portable/block_lanes.h for
// each function.
#pragma once

#include "kernels/isa/neon/blocks.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr std::int64_t kBlockLanes = 8;
struct CodeVec {
  int8x16_t low, high;
};
struct BlockInts {
  int32x4_t low, high;
};
using BlockFloats = Scale8;

constexpr int kTileRows = 2;
constexpr int kTileTokens = 2;
constexpr int kListedTokens = 4;
constexpr int kDotTileRows = 2;
constexpr int kDotTileTokens = 4;

inline CodeVec LoadCodeVec(const void* p) {
  const auto* bytes = static_cast<const std::int8_t*>(p);
  return {vld1q_s8(bytes), vld1q_s8(bytes + 16)};
}
inline void KeepInRegister(CodeVec&) {}
inline BlockInts LoadInts(const std::int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
inline void StoreInts(std::int32_t* p, const BlockInts& v) {
  vst1q_s32(p, v.low);
  vst1q_s32(p + 4, v.high);
}
inline BlockFloats LoadFloats(const float* p) { return Load8(p); }
inline void StoreFloats(float* p, const BlockFloats& v) { Store8(p, v); }
inline BlockFloats BroadcastFloats(float value) { return Broadcast8(value); }
inline BlockFloats MulFloats(const BlockFloats& a, const BlockFloats& b) { return Mul8(a, b); }
inline BlockFloats FmaFloats(const BlockFloats& a, const BlockFloats& b, const BlockFloats& c) {
  return Fma8(a, b, c);
}
inline BlockFloats ToFloats(const BlockInts& v) {
  return {vcvtq_f32_s32(v.low), vcvtq_f32_s32(v.high)};
}
inline float SumFloats(const BlockFloats& v) { return Sum8(v); }
inline void StoreSums4(const BlockFloats* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = SumFloats(v[i]);
}

template <int kNatural>
constexpr int kStoredOffset = 0;

template <int kBits, int kNatural>
class BlockDots {
 public:
  BlockDots() = default;
  explicit BlockDots(const BlockInts& first) : sum_(first) {}
  template <int kVector>
  void Add(const CodeVec& codes, const CodeVec& x) {
    sum_.low = vdotq_s32(sum_.low, codes.low, x.low);
    sum_.high = vdotq_s32(sum_.high, codes.high, x.high);
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

using SignedDots = BlockDots<8, 0>;

inline BlockInts ZeroInts() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline BlockInts AddInts(const BlockInts& a, const BlockInts& b) {
  return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}
template <int kFactor>
inline BlockInts MinusTimes(const BlockInts& v) {
  return {vmulq_n_s32(v.low, -kFactor), vmulq_n_s32(v.high, -kFactor)};
}

struct GroupCodes {
  CodeVec vector[8];
};
inline GroupCodes Beside(const Codes& first, const Codes&) {
  GroupCodes codes;
  for (int v = 0; v < 8; ++v) codes.vector[v] = {first.part[2 * v], first.part[2 * v + 1]};
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
inline BlockFloats Beside(const Scale8& first, const Scale8&) { return first; }

inline BlockInts SumVectors(const std::int8_t* vectors) {
  BlockInts sums = ZeroInts();
  for (int v = 0; v < 4; ++v) {
    sums.low = vdotq_s32(sums.low, vdupq_n_s8(1), vld1q_s8(vectors + 32 * v));
    sums.high = vdotq_s32(sums.high, vdupq_n_s8(1), vld1q_s8(vectors + 32 * v + 16));
  }
  return sums;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
