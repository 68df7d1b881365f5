// Fills one instruction set's KernelTable from the shared kernels.
#pragma once

#include <string_view>

#include "kernels/isa/shared/add_group-inl.h"
#include "kernels/isa/shared/add_rows-inl.h"
#include "kernels/isa/shared/dot_float_tiles-inl.h"
#include "kernels/isa/shared/dot_fp4-inl.h"
#include "kernels/isa/shared/dot_superblock-inl.h"
#include "kernels/isa/shared/encode-inl.h"
#include "kernels/isa/shared/encode_q6_k-inl.h"
#include "kernels/isa/shared/encode_weighted-inl.h"
#include "kernels/isa/shared/int8-inl.h"
#include "kernels/isa/shared/listed-inl.h"
#include "kernels/isa/shared/sign-inl.h"
#include "kernels/isa/shared/softmax-inl.h"
#include "kernels/isa/shared/state-inl.h"
#include "kernels/isa/shared/vector_ops-inl.h"
#include "kernels/kernel_table.h"

namespace powerinfer::POWERINFER_ISA {
namespace {

template <class Kernels, int kTokens = 1>
inline void DotOneTile(const DotArguments& a, std::int64_t num_tokens) {
  if constexpr (kTokens < Kernels::kMaxTokens) {
    if (num_tokens > kTokens) return DotOneTile<Kernels, kTokens + 1>(a, num_tokens);
  }
  Kernels::template DotTile<kTokens>(a);
}

/// Cuts the tokens into tiles that a kernel holds in registers. A few rows at a time are multiplied
/// with all tokens, so that they are read from memory once.
template <class Kernels>
void DotByTiles(const DotArguments& all) {
  constexpr std::int64_t kMostTokens = Kernels::kMaxTokens;
  DotArguments a = all;
  if (all.num_tokens > kMostTokens) {
    const std::int64_t stride = all.row_stride > 0 ? all.row_stride : 1;
    a.num_rows = Kernels::kTileRows * (1 + Kernels::kFewBytes / (Kernels::kTileRows * stride));
  }
  for (std::int64_t first = 0; first < all.num_rows; first += a.num_rows) {
    const std::int64_t left = all.num_rows - first;
    if (left < a.num_rows) a.num_rows = left;
    a.rows = all.rows + first * all.row_stride;
    a.num_following = left - a.num_rows;
    a.pass = 0;
    a.num_passes = (all.num_tokens + kMostTokens - 1) / kMostTokens;
    for (std::int64_t token = 0; token < all.num_tokens; ++a.pass) {
      a.x = all.x + token;
      a.out = all.out + token * all.out_stride + first;
      // Tiles of about the same size: eight are four and four rather than five and three.
      const std::int64_t passes = a.num_passes - a.pass;
      const std::int64_t count = (all.num_tokens - token + passes - 1) / passes;
      DotOneTile<Kernels>(a, count);
      token += count;
    }
  }
}

template <class Weights>
struct FloatKernels {
  using Stretch = FloatStretch<Weights>;
  static constexpr std::int64_t kMaxTokens = kMaxFloatTokens;
  static constexpr std::int64_t kTileRows = 1, kFewBytes = 8 * 1024;
  /// Rows shorter than this, those of attention's heads, find all tokens in the first cache.
  static constexpr std::int64_t kTiledColumns = 512;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    const auto bytes = static_cast<std::int64_t>(kTokens * sizeof(float)) * a.columns;
    if constexpr (kTokens <= kMaxTurnTokens) {
      if (bytes > kCachedBytes) return DotFloatTurns<Weights, kTokens>(a);
    }
    DotFloatRows<Weights, kTokens>(a);
  }
  static void Dot(const DotArguments& a) {
    if (a.num_tokens > 2 && a.columns >= kTiledColumns) return DotFloatTiles<Weights>(a);
    DotByTiles<FloatKernels>(a);
  }
  static void Dequantize(const std::uint8_t* row, std::int64_t columns, float* out) {
    DecodeFloatRow<Weights>(row, columns, StoreSink{out});
  }
  static void Axpy(const std::uint8_t* row, std::int64_t columns, float scale, float* y) {
    DecodeFloatRow<Weights>(row, columns, AxpySink{y, Broadcast(scale)});
  }
  static void AxpyTwo(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                      float scale0, float scale1, float* y) {
    AddTwoFloatRows<Weights>(row0, row1, columns, {Broadcast(scale0), Broadcast(scale1)}, y);
  }
};

template <class Group>
struct BlockKernels {
  using Stretch = BlockStretch<Group>;
  static constexpr std::int64_t kMaxTokens = 4;
  /// As in SuperblockKernels.
  static constexpr std::int64_t kTileRows = kDotTileRows, kFewBytes = 32 * 1024;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    if constexpr (kTokens > 1) {
      if (a.num_passes > 1) return DotBlockRows<Group, kTileRows, kTokens>(a);
    }
    DotBlockRows<Group, 1, kTokens>(a);
  }
  static void Dot(const DotArguments& a) { DotByTiles<BlockKernels>(a); }
  static void Dequantize(const std::uint8_t* row, std::int64_t columns, float* out) {
    DecodeBlockRow<Group>(row, columns, StoreSink{out});
  }
  static void Axpy(const std::uint8_t* row, std::int64_t columns, float scale, float* y) {
    DecodeBlockRow<Group>(row, columns, AxpySink{y, Broadcast(scale)});
  }
  static void AxpyTwo(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                      float scale0, float scale1, float* y) {
    AddTwoBlockRows<Group>(row0, row1, columns, {Broadcast(scale0), Broadcast(scale1)}, y);
  }
};

struct SixBitKernels : BlockKernels<Q6_KGroup> {
  static constexpr std::int64_t kTileRows = 1, kFewBytes = 8 * 1024;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    DotSixBitRows<1, kTokens>(a);
  }
  static void Dot(const DotArguments& a) { DotByTiles<SixBitKernels>(a); }
};

struct MXFP4Kernels : BlockKernels<MXFP4Group> {
  static constexpr std::int64_t kTileRows = 1, kFewBytes = 8 * 1024;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    DotFp4Rows<kTokens>(a);
  }
  static void Dot(const DotArguments& a) { DotByTiles<MXFP4Kernels>(a); }
};

template <class Superblock>
struct SuperblockKernels {
  using Stretch = SuperblockStretch<Superblock>;
  static constexpr std::int64_t kMaxTokens = kDotTileTokens;
  /// More rows than the first-level cache holds: reading them again costs less than reading the
  /// activations of all tokens again for every few rows.
  static constexpr std::int64_t kTileRows = kDotTileRows, kFewBytes = 32 * 1024;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    // One pass is bound by memory, which is faster row by row.
    if constexpr (kTokens > 1) {
      if (a.num_passes > 1) return DotSuperblockRows<Superblock, kTileRows, kTokens>(a);
    }
    DotSuperblockRows<Superblock, 1, kTokens>(a);
  }
  static void Dot(const DotArguments& a) { DotByTiles<SuperblockKernels>(a); }
  static void Dequantize(const std::uint8_t* row, std::int64_t columns, float* out) {
    DecodeBlockRow<SuperblockGroup<Superblock>>(row, columns, StoreSink{out});
  }
  static void Axpy(const std::uint8_t* row, std::int64_t columns, float scale, float* y) {
    if constexpr (kHasNibbleRows<Superblock>) {
      NibbleRows<Superblock>::Add(row, columns, scale, y);
    } else {
      DecodeBlockRow<SuperblockGroup<Superblock>>(row, columns, AxpySink{y, Broadcast(scale)});
    }
  }
  static void AxpyTwo(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                      float scale0, float scale1, float* y) {
    if constexpr (kHasNibbleRows<Superblock>) {
      NibbleRows<Superblock>::AddTwo(row0, row1, columns, scale0, scale1, y);
    } else {
      AddTwoBlockRows<SuperblockGroup<Superblock>>(row0, row1, columns,
                                                   {Broadcast(scale0), Broadcast(scale1)}, y);
    }
  }
};

struct SignKernels {
  using Stretch = BlockStretch<SignGroup>;
  static constexpr std::int64_t kMaxTokens = 4;
  static constexpr std::int64_t kTileRows = 1, kFewBytes = 8 * 1024;
  template <int kTokens>
  static void DotTile(const DotArguments& a) {
    DotSignRows<kTokens>(a);
  }
  static void Dot(const DotArguments& a) { DotByTiles<SignKernels>(a); }
  static void Dequantize(const std::uint8_t* row, std::int64_t columns, float* out) {
    DecodeBlockRow<SignGroup>(row, columns, StoreSink{out});
  }
  static void Axpy(const std::uint8_t* row, std::int64_t columns, float scale, float* y) {
    DecodeBlockRow<SignGroup>(row, columns, AxpySink{y, Broadcast(scale)});
  }
  static void AxpyTwo(const std::uint8_t* row0, const std::uint8_t* row1, std::int64_t columns,
                      float scale0, float scale1, float* y) {
    AddTwoBlockRows<SignGroup>(row0, row1, columns, {Broadcast(scale0), Broadcast(scale1)}, y);
  }
};

template <class Kernels>
void DotRows(const std::uint8_t* rows, std::int64_t row_stride, std::int64_t num_rows,
             std::int64_t columns, const ActivationRow* x, std::int64_t num_tokens, float* out,
             std::int64_t out_stride, std::int64_t ahead) {
  Kernels::Dot({rows, row_stride, num_rows, columns, x, num_tokens, out, out_stride, ahead});
}

template <class Kernels>
void SetFormat(KernelTable& table, Format format) {
  const auto index = static_cast<int>(format);
  table.dot_rows[index] = DotRows<Kernels>;
  table.dequantize_row[index] = Kernels::Dequantize;
  table.axpy_row[index] = Kernels::Axpy;
  table.axpy_two_rows[index] = Kernels::AxpyTwo;
  table.add_row_group[index] = AddRowGroup<typename Kernels::Stretch>;
}

template <bool (*kEncode)(const float*, std::uint8_t*), Format kFormat>
void SetEncoder(KernelTable& table) {
  constexpr FormatInfo kInfo = kFormatInfo[static_cast<std::size_t>(kFormat)];
  table.encode_row[static_cast<int>(kFormat)] =
      EncodeBlockRow<kEncode, kInfo.block_size, kInfo.block_bytes>;
}

/// kCount blocks at a time. kIsSearched: without weights, too.
template <TileEncoder kEncode, int kCount, Format kFormat, bool kIsSearched = false>
void SetWeightedEncoder(KernelTable& table) {
  constexpr EncodeWeightedRowFn kEncodeRow = EncodeTiledRow<kEncode, kCount, kFormat>;
  table.encode_weighted_row[static_cast<int>(kFormat)] = kEncodeRow;
  if constexpr (kIsSearched) {
    table.encode_row[static_cast<int>(kFormat)] = EncodePlainRow<kEncodeRow>;
  }
}

void SetWeightedEncoders(KernelTable& table) {
  table.squared_loss = SquaredLoss;
  SetWeightedEncoder<EncodeSignedWeighted<4>, kGroups, Format::kQ4_0>(table);
  SetWeightedEncoder<EncodeOffsetWeighted<4>, kGroups, Format::kQ4_1>(table);
  SetWeightedEncoder<EncodeSignedWeighted<5>, kGroups, Format::kQ5_0>(table);
  SetWeightedEncoder<EncodeOffsetWeighted<5>, kGroups, Format::kQ5_1>(table);
  SetWeightedEncoder<EncodeSignedWeighted<8>, kGroups, Format::kQ8_0>(table);
  SetWeightedEncoder<EncodeOffsetK<4>, 2, Format::kQ4_K, true>(table);
  SetWeightedEncoder<EncodeOffsetK<5>, 2, Format::kQ5_K, true>(table);
  SetWeightedEncoder<EncodeQ6_K, 1, Format::kQ6_K, true>(table);
}

void SetEncoders(KernelTable& table) {
  table.encode_row[static_cast<int>(Format::kF32)] = EncodeF32Row;
  table.encode_row[static_cast<int>(Format::kF16)] = EncodeF16Row;
  table.encode_row[static_cast<int>(Format::kBF16)] = EncodeBF16Row;
  SetEncoder<EncodeQ8_0, Format::kQ8_0>(table);
  SetEncoder<EncodeSigned<4>, Format::kQ4_0>(table);
  SetEncoder<EncodeOffset<4>, Format::kQ4_1>(table);
  SetEncoder<EncodeSigned<5>, Format::kQ5_0>(table);
  SetEncoder<EncodeOffset<5>, Format::kQ5_1>(table);
  SetEncoder<EncodeMXFP4, Format::kMXFP4>(table);
  SetEncoder<EncodeQ4_0Superblock, Format::kQ4_0Superblock>(table);
  SetEncoder<EncodeLowbit<2>, Format::kLowbit2>(table);
  SetEncoder<EncodeLowbit<3>, Format::kLowbit3>(table);
  SetEncoder<EncodeSign, Format::kSign>(table);
}

KernelTable MakeTable(std::string_view name, const GemmKernel& gemm, std::string_view int8_name) {
  KernelTable table;
  table.name = name;
  table.gemm = gemm;
  table.int8 = MakeInt8Kernel(int8_name);
#define POWERINFER_FORMAT(id, name, size, bytes, activations, Kernels, ...) \
  SetFormat<Kernels>(table, Format::k##id);
#include "quant/format_list.inc"
  SetEncoders(table);
  SetWeightedEncoders(table);
  table.quantize = Quantize;
  table.group_weights = 32 * kBlockLanes;
  table.permute = Permute;
  table.binarize = Binarize;
  table.dot_f32 = DotF32;
  table.dot_f16 = DotF16;
  table.axpy_f16 = AxpyF16;
  table.softmax_weights = SoftmaxWeights;
  table.cap_scores = CapScores;
  table.add_rows_f32 = AddRowsF32;
  table.add_rows_f16 = AddRowsF16;
  table.list_above = ListFiring<false>;
  table.list_from = ListFiring<true>;
  table.dot_listed = DotListed;
  table.add_listed = AddListed;
  table.f32_to_f16 = F32ToF16Row;
  table.convolve = ConvolveRow;
  table.step_delta = StepDelta;
  table.step_scan = StepScan;
  table.gate = GateRow;
  return table;
}

}  // namespace
}  // namespace powerinfer::POWERINFER_ISA
