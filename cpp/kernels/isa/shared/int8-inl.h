// The int8 product of kernels/int8_kernel.h on the vectors of block_lanes.h.
//
// Per group of unpacked weights (int8_unpack-inl.h), row and token: eight integer dot products per
// lane, one conversion, and alpha = scale of the row * scale of x. The initial integer sum removes
// the offsets of codes, through the sums of x. Bound by the multipliers: a tile of rows and tokens
// stays in registers.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/int8_kernel.h"
#include "kernels/isa/shared/int8_unpack-inl.h"
#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

/// The initial integer sums of a token, which cancel the offsets of codes: those of whole blocks,
/// or of their first or second half.
template <class U>
[[gnu::always_inline]] inline BlockInts FirstSums(const QuantizedVector& x, std::int64_t group,
                                                  int part) {
  if constexpr (U::kStored == 0) {
    return ZeroInts();
  } else {
    const std::int32_t* sums = x.half_sums + group * 2 * kBlockLanes;
    const BlockInts half = LoadInts(sums + part * kBlockLanes);
    if constexpr (U::kParts == 2) return MinusTimes<U::kStored>(half);
    return MinusTimes<U::kStored>(AddInts(half, LoadInts(sums + kBlockLanes)));
  }
}

/// Groups of every row that are multiplied with all tokens before the next ones: those of a tile's
/// rows stay in the first-level cache while the tokens pass, those of some hundred tokens in the
/// second.
constexpr std::int64_t kBlockGroups = 2048 / kGroupWeights;

/// A register tile: kRows unpacked rows `row_bytes` apart with kTokens tokens.
template <class U, int kRows, int kTokens>
class Tile {
 public:
  Tile(const std::uint8_t* rows, std::int64_t row_bytes) : rows_(rows), row_bytes_(row_bytes) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sums_[t][r] = BroadcastFloats(0.0F);
    }
  }

  /// Sums so far, as Keep left them: f32[kTokens, kRows, kBlockLanes].
  [[gnu::always_inline]] void Resume(const float* sums) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        sums_[t][r] = LoadFloats(sums + (t * kRows + r) * kBlockLanes);
    }
  }
  [[gnu::always_inline]] void Keep(float* sums) const {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        StoreFloats(sums + (t * kRows + r) * kBlockLanes, sums_[t][r]);
    }
  }

  /// Adds groups [first, end).
  [[gnu::always_inline]] void Multiply(const QuantizedVector* const* x, std::int64_t first,
                                       std::int64_t end) {
    for (std::int64_t group = first; group < end; ++group) {
      group_ = rows_ + group * U::kBytes;
#pragma GCC unroll 2
      for (int part = 0; part < U::kParts; ++part) AddPart(x, group, part);
      if constexpr (U::kHasMinima) AddMinima(x, group);
    }
  }

  /// Sums of the lanes: kRows numbers.
  [[gnu::always_inline]] void Finish(int token, float* out) const {
    constexpr int kFours = kRows / 4 * 4;
    if constexpr (kFours > 0) StoreSums4(sums_[token], out);
#pragma GCC unroll 8
    for (int r = kFours; r < kRows; ++r) out[r] = SumFloats(sums_[token][r]);
  }

 private:
  using Dots = typename U::Dots;

  [[gnu::always_inline]] const float* Scales(int row) const {
    return reinterpret_cast<const float*>(group_ + row * row_bytes_ + U::kCodesBytes);
  }

  /// The part of x that is multiplied with the codes at byte `at` of a group.
  template <int kVector>
  [[gnu::always_inline]] static CodeVec Input(const std::int8_t* x, std::int64_t at) {
    if constexpr (kWantsWords<Dots>) {
      return Dots::template Words<kVector % 2>(LoadCodeVec(x + kVector / 2 * kVectorBytes));
    } else {
      return LoadCodeVec(x + at);
    }
  }

  template <int kVector>
  [[gnu::always_inline]] void AddVector(const QuantizedVector* const* x, std::int64_t group,
                                        int part, Dots (&dots)[kTokens][kRows]) const {
    const std::int64_t at = (part * (U::kVectors / U::kParts) + kVector) * kVectorBytes;
    CodeVec codes[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      codes[r] = LoadCodeVec(group_ + r * row_bytes_ + at);
      if constexpr (kTokens > 1) KeepInRegister(codes[r]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const CodeVec input = Input<kVector>(x[t]->permuted + group * kGroupWeights, at);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) dots[t][r].template Add<kVector>(codes[r], input);
    }
  }

  template <int... kVectors>
  [[gnu::always_inline]] void AddVectors(std::integer_sequence<int, kVectors...>,
                                         const QuantizedVector* const* x, std::int64_t group,
                                         int part, Dots (&dots)[kTokens][kRows]) const {
    (AddVector<kVectors>(x, group, part, dots), ...);
  }

  [[gnu::always_inline]] void AddPart(const QuantizedVector* const* x, std::int64_t group,
                                      int part) {
    Dots dots[kTokens][kRows];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const BlockInts first = FirstSums<U>(*x[t], group, part);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) dots[t][r] = Dots(first);
    }
    AddVectors(std::make_integer_sequence<int, U::kVectors / U::kParts>(), x, group, part, dots);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const BlockFloats x_scales = LoadFloats(x[t]->scales + group * kBlockLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const BlockFloats scales = LoadFloats(Scales(r) + part * kBlockLanes);
        BlockFloats alpha;
        if constexpr (U::kHasWideScales) {
          alpha = FiniteProduct(scales, x_scales);
        } else {
          alpha = MulFloats(scales, x_scales);
        }
        sums_[t][r] = FmaFloats(ToFloats(dots[t][r].Total()), alpha, sums_[t][r]);
      }
    }
  }

  [[gnu::always_inline]] void AddMinima(const QuantizedVector* const* x, std::int64_t group) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const BlockFloats x_sums = LoadFloats(x[t]->sums + group * kBlockLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums_[t][r] = FmaFloats(LoadFloats(Scales(r) + kBlockLanes), x_sums, sums_[t][r]);
      }
    }
  }

  const std::uint8_t* rows_;
  const std::uint8_t* group_ = nullptr;
  std::int64_t row_bytes_;
  BlockFloats sums_[kTokens][kRows];
};

/// One call of Multiply.
template <class U>
struct Product {
  const std::uint8_t* rows;
  std::int64_t num_rows;
  std::int64_t columns;
  const ActivationRow* x;
  std::int64_t num_tokens;
  float* out;
  std::int64_t out_stride;
  float* sums;  // tile by tile

  /// Groups [first, end) of kRows rows from `row` with kTokens tokens from `token`.
  template <int kRows, int kTokens>
  [[gnu::always_inline]] void AddTile(std::int64_t row, std::int64_t token, std::int64_t first,
                                      std::int64_t end) {
    const QuantizedVector* inputs[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) inputs[t] = &x[token + t].quantized;
    const std::int64_t row_bytes = U::RowBytes(columns);
    Tile<U, kRows, kTokens> tile(rows + row * row_bytes, row_bytes);
    if (first > 0) tile.Resume(sums);
    tile.Multiply(inputs, first, end);
    if (end < U::NumGroups(columns)) {
      tile.Keep(sums);
    } else {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        tile.Finish(t, out + (token + t) * out_stride + row);
      }
    }
    sums += kRows * kTokens * kBlockLanes;
  }

  template <int kRows>
  void AddTokens(std::int64_t row, std::int64_t first, std::int64_t end) {
    std::int64_t token = 0;
    for (; token + kTileTokens <= num_tokens; token += kTileTokens) {
      AddTile<kRows, kTileTokens>(row, token, first, end);
    }
    for (; token < num_tokens; ++token) AddTile<kRows, 1>(row, token, first, end);
  }

  void AddGroups(std::int64_t first, std::int64_t end) {
    float* const all = sums;
    std::int64_t row = 0;
    for (; row + kTileRows <= num_rows; row += kTileRows) AddTokens<kTileRows>(row, first, end);
    for (; row < num_rows; ++row) AddTokens<1>(row, first, end);
    sums = all;
  }
};

template <class U>
void Multiply(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
              const ActivationRow* x, std::int64_t num_tokens, float* out, std::int64_t out_stride,
              float* sums) {
  Product<U> product{rows, num_rows, columns, x, num_tokens, out, out_stride, sums};
  const std::int64_t num_groups = U::NumGroups(columns);
  for (std::int64_t first = 0; first < num_groups; first += kBlockGroups) {
    const std::int64_t end = first + kBlockGroups;
    product.AddGroups(first, end < num_groups ? end : num_groups);
  }
}

template <class U, int kTokens>
inline void MultiplyListedTile(const std::uint8_t* row, std::int64_t columns,
                               const ActivationRow* x, const std::uint16_t* tokens, float* out) {
  const QuantizedVector* inputs[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) inputs[t] = &x[tokens[t]].quantized;
  Tile<U, 1, kTokens> tile(row, 0);
  tile.Multiply(inputs, 0, U::NumGroups(columns));
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) tile.Finish(t, out + t);
}

template <class U>
void MultiplyListed(const std::uint8_t* row, std::int64_t columns, const ActivationRow* x,
                    const std::uint16_t* tokens, std::int64_t count, float* out) {
  std::int64_t t = 0;
  for (; t + kListedTokens <= count; t += kListedTokens) {
    MultiplyListedTile<U, kListedTokens>(row, columns, x, tokens + t, out + t);
  }
  if constexpr (kListedTokens > 4) {
    for (; t + 4 <= count; t += 4) MultiplyListedTile<U, 4>(row, columns, x, tokens + t, out + t);
  }
  for (; t + 2 <= count; t += 2) MultiplyListedTile<U, 2>(row, columns, x, tokens + t, out + t);
  if (t < count) MultiplyListedTile<U, 1>(row, columns, x, tokens + t, out + t);
}

template <class U>
void SetInt8Format(Int8Kernel& kernel, Format format) {
  const auto index = static_cast<std::size_t>(format);
  kernel.unpacked_bytes[index] = U::RowBytes;
  kernel.unpack[index] = UnpackRow<U>;
  kernel.multiply[index] = Multiply<typename U::Layout>;
  kernel.multiply_listed[index] = MultiplyListed<typename U::Layout>;
}

Int8Kernel MakeInt8Kernel(std::string_view name) {
  Int8Kernel kernel;
  kernel.name = name;
  kernel.tile_rows = kTileRows;
  kernel.lanes = kBlockLanes;
#define POWERINFER_FORMAT(id, name, size, bytes, activations, Kernels, ...) \
  __VA_OPT__(SetInt8Format<Unpacked<__VA_ARGS__>>(kernel, Format::k##id);)
#include "quant/format_list.inc"
  return kernel;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
