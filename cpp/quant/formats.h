// Block layouts of the weight formats (facts of the GGUF/ggml tensor types, and layouts of our own)
// and their sizes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace powerinfer {

/// Weight formats with kernels. The order is the index into KernelTable's arrays.
enum class Format : std::int32_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
  kQ4_0Superblock,  ///< 256 weights of the format, codes interleaved by block: superblock.h
  kQ4_KSuperblock,
  kQ5_KSuperblock,
  kQ6_KSuperblock,
  kLowbit2,  ///< 256 2-bit weights in 80 bytes: lowbit.h. Predictors' copies only
  kLowbit3,  ///< 256 3-bit weights in 112 bytes: lowbit.h. Predictors' copies only
  kSign,     ///< 256 signs and their mean magnitude in 34 bytes: lowbit.h. Copies only
};
inline constexpr std::int32_t kNumFormats = 19;

/// What the dot products of a format multiply with.
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

  /// Whether dot products take QuantizedVector rather than f32 or signs.
  constexpr bool uses_int8_activations() const {
    return activations == ActivationForm::kInt8 || activations == ActivationForm::kPermutedInt8;
  }
};

inline constexpr std::array<FormatInfo, kNumFormats> kFormatInfo = {{
    {"f32", 1, 4, ActivationForm::kFloat},
    {"f16", 1, 2, ActivationForm::kFloat},
    {"bf16", 1, 2, ActivationForm::kFloat},
    {"q4_0", 32, 18, ActivationForm::kInt8},
    {"q4_1", 32, 20, ActivationForm::kInt8},
    {"q5_0", 32, 22, ActivationForm::kInt8},
    {"q5_1", 32, 24, ActivationForm::kInt8},
    {"q8_0", 32, 34, ActivationForm::kInt8},
    {"q4_k", 256, 144, ActivationForm::kInt8},
    {"q5_k", 256, 176, ActivationForm::kInt8},
    {"q6_k", 256, 210, ActivationForm::kInt8},
    {"mxfp4", 32, 17, ActivationForm::kInt8},
    {"q4_0_superblock", 256, 144, ActivationForm::kPermutedInt8},
    {"q4_k_superblock", 256, 144, ActivationForm::kPermutedInt8},
    {"q5_k_superblock", 256, 176, ActivationForm::kPermutedInt8},
    {"q6_k_superblock", 256, 210, ActivationForm::kPermutedInt8},
    {"lowbit2", 256, 80, ActivationForm::kPermutedInt8},
    {"lowbit3", 256, 112, ActivationForm::kPermutedInt8},
    {"sign", 256, 34, ActivationForm::kSigns},
}};

inline const FormatInfo& InfoOf(Format format) {
  return kFormatInfo[static_cast<std::size_t>(format)];
}

/// Bytes of one row of `columns` weights; `columns` must be a multiple of the block size.
inline std::int64_t RowBytes(Format format, std::int64_t columns) {
  const FormatInfo& info = InfoOf(format);
  return columns / info.block_size * info.block_bytes;
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
