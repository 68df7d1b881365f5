// Products of prompt rows in int8: weights of block formats unpacked to bytes in the cache, times
// activations in the int8 blocks of 32 that decode uses.
//
// In most kernels lanes are blocks: a group is as many blocks of 32 weights as a vector has 32-bit
// lanes, its codes ordered as in quant/superblock.h (4-byte lane j of every vector belongs to block
// j), so that the integer sums of all blocks of a group lie in one vector and meet their scales
// without horizontal additions. With i8mm lanes are results. Weight = scale * code + minimum.
#pragma once

#include <cstdint>
#include <string_view>

#include "quant/formats.h"

namespace powerinfer {

struct ActivationRow;

/// One instruction set's int8 product. Every result is summed in an order that depends on the
/// number of columns alone: its bits depend neither on the other rows and tokens nor on how many
/// there are.
struct Int8Kernel {
  std::string_view name;       ///< "avx512 vnni", "avx2"...; what `inspect --machine` prints
  std::int64_t tile_rows = 1;  ///< rows that share one reading of the activations
  std::int64_t lanes = 8;      ///< f32 sums per row and token

  bool reads_permuted = true;  ///< `permuted` of activations; else `values`

  // Each is null for formats that are not multiplied in int8.

  /// Bytes of an unpacked row of `columns` weights, a multiple of 64.
  using UnpackedBytesFn = std::int64_t (*)(std::int64_t columns);
  UnpackedBytesFn unpacked_bytes[kNumFormats] = {};

  /// Unpacks a row of `columns` weights (whole blocks) to `unpacked`, aligned to 64 bytes.
  using UnpackFn = void (*)(const std::uint8_t* row, std::int64_t columns, std::uint8_t* unpacked);
  UnpackFn unpack[kNumFormats] = {};

  /// out[t * out_stride + r] = row r . x[t] for num_rows unpacked rows, one after the other, and
  /// num_tokens tokens from PrepareActivations for prompt rows. sums: f32[num_rows, num_tokens,
  /// lanes], scratch aligned to 64 bytes.
  using MultiplyFn = void (*)(const std::uint8_t* rows, std::int64_t num_rows, std::int64_t columns,
                              const ActivationRow* x, std::int64_t num_tokens, float* out,
                              std::int64_t out_stride, float* sums);
  MultiplyFn multiply[kNumFormats] = {};

  /// out[j] = row . x[tokens[j]] for j < count: one unpacked row and the tokens it fires for.
  using MultiplyListedFn = void (*)(const std::uint8_t* row, std::int64_t columns,
                                    const ActivationRow* x, const std::uint16_t* tokens,
                                    std::int64_t count, float* out);
  MultiplyListedFn multiply_listed[kNumFormats] = {};

  bool Takes(Format format) const { return unpack[static_cast<std::size_t>(format)] != nullptr; }
};

}  // namespace powerinfer
