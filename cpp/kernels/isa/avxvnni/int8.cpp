// The int8 product of AVX-VNNI: AVX2's vectors with a dot product of four bytes into each lane.
// Everything else on such a CPU is AVX2.
#define POWERINFER_ISA avxvnni

#include "kernels/isa/avx2/block_lanes_256.h"
#include "kernels/isa/avx2/vectors.h"
#include "kernels/isa_tables.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kTileRows = 3;
constexpr int kTileTokens = 2;
constexpr int kListedTokens = 4;

template <int kNatural>
constexpr int kStoredOffset = kNatural;

template <int kBits, int kNatural>
class BlockDots {
 public:
  BlockDots() = default;
  explicit BlockDots(BlockInts first) : sum_(first) {}
  template <int kVector>
  void Add(CodeVec codes, CodeVec x) {
    sum_ = _mm256_dpbusd_avx_epi32(sum_, codes, x);
  }
  BlockInts Total() const { return sum_; }

 private:
  BlockInts sum_;
};

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA

#include "kernels/isa/shared/int8-inl.h"

namespace powerinfer {

Int8Kernel AvxVnniInt8Kernel() { return POWERINFER_ISA::MakeInt8Kernel("avx-vnni"); }

}  // namespace powerinfer
