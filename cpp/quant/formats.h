// Block layouts of the weight formats (facts of the GGUF/ggml tensor types, and layouts of our own)
// and their sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace powerinfer {

/// Weight formats with kernels. The order is the index into KernelTable's arrays.
enum class Format : std::int32_t {
#define POWERINFER_FORMAT(id, ...) k##id,
#include "quant/format_list.inc"
};

/// The activations that the dot products of a format multiply with.
enum class ActivationForm : std::int32_t {
  kFloat,         ///< f32
  kInt8,          ///< QuantizedVector: int8 in blocks of 32
  kPermutedInt8,  ///< QuantizedVector with `permuted`
  kSigns,         ///< one bit per value and the mean magnitude of the vector
};

struct FormatInfo {
  std::string_view name;
  std::int32_t block_size;   ///< weights per block
  std::int32_t block_bytes;  ///< bytes per block
  ActivationForm activations;

  /// True if dot products take QuantizedVector rather than f32 or signs.
  constexpr bool uses_int8_activations() const {
    return activations == ActivationForm::kInt8 || activations == ActivationForm::kPermutedInt8;
  }
};

inline constexpr auto kFormatInfo = std::to_array<FormatInfo>({
#define POWERINFER_FORMAT(id, name, size, bytes, activations, ...) \
  {name, size, bytes, ActivationForm::activations},
#include "quant/format_list.inc"
});
inline constexpr std::int32_t kNumFormats = std::int32_t{kFormatInfo.size()};

inline const FormatInfo& InfoOf(Format format) {
  return kFormatInfo[static_cast<std::size_t>(format)];
}

/// Bytes of one row of `columns` weights, a multiple of the block size, or of 32 in superblocks of
/// formats that have blocks of 32 in files.
inline std::int64_t RowBytes(Format format, std::int64_t columns) {
  const FormatInfo& info = InfoOf(format);
  return columns * info.block_bytes / info.block_size;
}

/// An activation vector quantized to int8 in blocks of 32: x[i] ~= scales[i / 32] * values[i].
/// `sums[b]` = scales[b] * sum of the block's values (folds constant offsets of weight formats).
/// All are padded with zeros to whole groups of the kernels (KernelTable::group_weights), in which
/// `permuted` holds the values in the byte order of superblocks (quant/superblock.h), and
/// `half_sums` the sums of the integers of the blocks' halves. Both may be null.
struct QuantizedVector {
  const std::int8_t* values = nullptr;      // i8[n]
  const std::int8_t* permuted = nullptr;    // i8[n], by groups
  const float* scales = nullptr;            // f32[n / 32]
  const float* sums = nullptr;              // f32[n / 32]
  std::int64_t size = 0;                    // n, a multiple of 32
  const std::int32_t* half_sums = nullptr;  // i32[n / group_weights, 2, group_weights / 32]
};

}  // namespace powerinfer
