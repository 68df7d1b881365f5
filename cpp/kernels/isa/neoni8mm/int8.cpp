// The int8 product of arm64 with i8mm. Everything else on such a CPU is NEON.
//
// `Multiply` lays pairs of rows side by side, a piece of columns at a time, and multiplies them
// with pairs of tokens: per block and pair of pairs four smmla, one conversion, and alpha = scale
// of the row * scale of x. Every result is one chain of additions in the order of the blocks, in
// `MultiplyListed` too.
#define POWERINFER_ISA neoni8mm

#include "kernels/int8_kernel.h"
#include "kernels/isa/neoni8mm/row_pairs.h"
#include "kernels/isa_tables.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

constexpr int kRowPairs = 4;    // of a register tile
constexpr int kTokenPairs = 2;  // of a register tile

/// One call of Multiply. An odd row or token is paired with itself.
template <class U>
class Product {
 public:
  Product(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
          const ActivationRow* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
          float* sums)
      : rows_(rows),
        num_rows_(num_rows),
        columns_(columns),
        x_(x),
        num_tokens_(num_tokens),
        out_(out),
        out_stride_(out_stride),
        all_sums_(sums) {}

  void Run() {
    for (begin_ = 0; begin_ < columns_ / 32; begin_ = end_) {
      end_ = begin_ + kPieceBlocks < columns_ / 32 ? begin_ + kPieceBlocks : columns_ / 32;
      sums_ = all_sums_;
      std::int64_t row = 0;
      for (; row + 2 * kRowPairs <= num_rows_; row += 2 * kRowPairs) AddRows<kRowPairs>(row);
      for (; row < num_rows_; row += 2) AddRows<1>(row);
    }
  }

 private:
  template <int kRows>
  void AddRows(std::int64_t row) {
    PairBlock<U> blocks[kRows * kPieceBlocks];
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t first = row + 2 * r;
      const std::int64_t second = first + 1 < num_rows_ ? first + 1 : first;
      const std::int64_t bytes = U::RowBytes(columns_);
      LoadPairBlocks<U>(rows_ + first * bytes, rows_ + second * bytes, columns_, begin_, end_,
                        blocks + r * kPieceBlocks);
    }
    std::int64_t token = 0;
    for (; token + 2 * kTokenPairs <= num_tokens_; token += 2 * kTokenPairs) {
      AddTile<kRows, kTokenPairs>(blocks, row, token);
    }
    for (; token < num_tokens_; token += 2) AddTile<kRows, 1>(blocks, row, token);
  }

  template <int kRows, int kTokens>
  [[gnu::always_inline]] void AddTile(const PairBlock<U>* blocks, std::int64_t row,
                                      std::int64_t token) {
    TokenPair tokens[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const std::int64_t first = token + 2 * t;
      const std::int64_t second = first + 1 < num_tokens_ ? first + 1 : first;
      tokens[t] = {&x_[first].quantized, &x_[second].quantized};
    }
    Tile<U, kRows, kTokens> tile(sums_);
    tile.Begin(begin_ == 0);
    tile.Multiply(blocks, tokens, begin_, end_);
    tile.Keep();
    if (end_ == columns_ / 32) Store<kRows, kTokens>(row, token);
    sums_ += 4 * kRows * kTokens;
  }

  template <int kRows, int kTokens>
  void Store(std::int64_t row, std::int64_t token) const {
    for (int i = 0; i < 4 * kRows * kTokens; ++i) {
      const std::int64_t r = row + i / 4 / kTokens * 2 + i % 4 / 2;
      const std::int64_t t = token + i / 4 % kTokens * 2 + i % 2;
      if (r < num_rows_ && t < num_tokens_) out_[t * out_stride_ + r] = sums_[i];
    }
  }

  const std::uint8_t* rows_;
  std::int64_t num_rows_;
  std::int64_t columns_;
  const ActivationRow* x_;
  std::int64_t num_tokens_;
  float* out_;
  std::int64_t out_stride_;
  float* all_sums_;
  float* sums_ = nullptr;  // tile by tile
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

template <class U>
void Multiply(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
              const ActivationRow* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
              float* sums) {
  Product<U>(rows, num_rows, columns, x, num_tokens, out, out_stride, sums).Run();
}

/// The integer products of one part of a block with four tokens, each a lane.
template <class U>
[[gnu::always_inline]] inline int32x4_t DotFour(const std::int8_t* codes,
                                                const QuantizedVector* const* x, std::int64_t at) {
  int32x4_t dots[4];
#pragma GCC unroll 4
  for (int t = 0; t < 4; ++t) {
    dots[t] = vdotq_s32(vdupq_n_s32(0), vld1q_s8(codes + at), vld1q_s8(x[t]->values + at));
    if constexpr (U::kParts == 1) {
      dots[t] = vdotq_s32(dots[t], vld1q_s8(codes + at + 16), vld1q_s8(x[t]->values + at + 16));
    }
  }
  return vpaddq_s32(vpaddq_s32(dots[0], dots[1]), vpaddq_s32(dots[2], dots[3]));
}

/// A single row has no partner: four tokens with the dot product of NEON, in the steps of a tile.
template <class U>
inline float32x4_t MultiplyFour(const std::uint8_t* row, std::int64_t columns,
                                const QuantizedVector* const* x) {
  float32x4_t sum = vdupq_n_f32(0.0F);
  for (std::int64_t block = 0; block < columns / 32; ++block) {
    const float x_scales[4] = {x[0]->scales[block], x[1]->scales[block], x[2]->scales[block],
                               x[3]->scales[block]};
#pragma GCC unroll 2
    for (int part = 0; part < U::kParts; ++part) {
      const int32x4_t dots = DotFour<U>(U::Codes(row), x, 32 * block + 16 * part);
      const float scale = U::Scales(row, columns)[block * U::kParts + part];
      const float32x4_t alpha = ScaleProduct<U>(vdupq_n_f32(scale), vld1q_f32(x_scales));
      sum = vfmaq_f32(sum, vcvtq_f32_s32(dots), alpha);
    }
    if constexpr (U::kHasMinima) {
      const float x_sums[4] = {x[0]->sums[block], x[1]->sums[block], x[2]->sums[block],
                               x[3]->sums[block]};
      sum = vfmaq_n_f32(sum, vld1q_f32(x_sums), U::Minima(row, columns)[block]);
    }
  }
  return sum;
}

template <class U>
void MultiplyListed(const std::uint8_t* row, std::int64_t columns, const ActivationRow* x,
                    const std::uint16_t* tokens, std::int64_t count, float* out) {
  for (std::int64_t first = 0; first < count; first += 4) {
    const std::int64_t last = count - 1;
    const QuantizedVector* inputs[4];
    for (std::int64_t t = 0; t < 4; ++t) {
      inputs[t] = &x[tokens[first + t < last ? first + t : last]].quantized;
    }
    float sums[4];
    vst1q_f32(sums, MultiplyFour<U>(row, columns, inputs));
    for (std::int64_t t = 0; t < 4 && first + t < count; ++t) out[first + t] = sums[t];
  }
}

/// The first of three arguments in format_list.inc, the class that reads blocks. Its Decoder
/// removes the offset of the codes, so the other two are not needed here.
template <class Group, int kBits, int kOffset>
using GroupOf = Group;

template <class Group>
void SetFormat(Int8Kernel& kernel, Format format) {
  using U = Unpacked<Group>;
  const auto index = static_cast<std::size_t>(format);
  kernel.unpacked_bytes[index] = U::RowBytes;
  kernel.unpack[index] = UnpackRow<U>;
  kernel.multiply[index] = Multiply<U>;
  kernel.multiply_listed[index] = MultiplyListed<U>;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA

namespace powerinfer {

Int8Kernel NeonI8mmInt8Kernel() {
  using namespace POWERINFER_ISA;
  Int8Kernel kernel;
  kernel.name = "neon i8mm";
  kernel.tile_rows = 2 * kRowPairs;
  kernel.lanes = 4;
  kernel.reads_permuted = false;
#define POWERINFER_FORMAT(id, name, size, bytes, activations, Kernels, ...) \
  __VA_OPT__(SetFormat<GroupOf<__VA_ARGS__>>(kernel, Format::k##id);)
#include "quant/format_list.inc"
  return kernel;
}

}  // namespace powerinfer
