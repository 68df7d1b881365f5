#include "ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace powerinfer {
namespace {

constexpr std::int64_t kQ8BlockSize = 32;
constexpr std::int64_t kQ8BlockBytes = 34;

std::int64_t CheckedRowBytes(const KVShape& shape, Format format) {
  if (shape.num_blocks < 1 || shape.block_size < 1 || shape.num_kv_heads < 1 ||
      shape.head_dim < 1) {
    throw std::invalid_argument("a KV cache needs at least one block, position, head and column");
  }
  if (format != Format::kF16 && format != Format::kQ8_0) {
    throw std::invalid_argument("KV cache elements are f16 or q8_0");
  }
  if (format == Format::kQ8_0 && shape.head_dim % kQ8BlockSize != 0) {
    throw std::invalid_argument("a q8_0 KV cache needs a head_dim that is a multiple of 32, got " +
                                std::to_string(shape.head_dim));
  }
  return RowBytes(format, shape.head_dim);
}

/// Product of all factors; throws std::bad_array_new_length if it exceeds half the range of int64.
std::int64_t PlaneBytes(const KVShape& shape, std::int64_t row_bytes) {
  std::int64_t product = row_bytes;
  for (const std::int64_t factor : {shape.num_blocks, shape.block_size, shape.num_kv_heads}) {
    if (product > std::numeric_limits<std::int64_t>::max() / 4 / factor) {
      throw std::invalid_argument("a KV cache of this size cannot be addressed");
    }
    product *= factor;
  }
  return product;
}

/// Q8_0 block: f16 scale = max|x| / 127, then round(x / scale).
void StoreQ8Block(const KernelTable& kernels, const float* values, std::uint8_t* block) {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < kQ8BlockSize; ++i) {
    const float magnitude = std::fabs(values[i]);
    largest = magnitude > largest || std::isnan(magnitude) ? magnitude : largest;
  }
  const float scale = largest / 127.0F;
  const bool is_usable = scale > 0.0F && std::isfinite(scale) && std::isfinite(1.0F / scale);
  const float inverse = is_usable ? 1.0F / scale : 0.0F;
  std::uint16_t half_scale = 0;
  kernels.f32_to_f16(&scale, 1, &half_scale);
  std::memcpy(block, &half_scale, sizeof(half_scale));
  for (std::int64_t i = 0; i < kQ8BlockSize; ++i) {
    const float scaled = is_usable ? values[i] * inverse : 0.0F;
    const auto rounded =
        static_cast<std::int8_t>(std::clamp(std::nearbyint(scaled), -127.F, 127.F));
    std::memcpy(block + sizeof(half_scale) + i, &rounded, 1);
  }
}

}  // namespace

KVCache::KVCache(const KVShape& shape, Format format)
    : shape_(shape),
      format_(format),
      row_bytes_(CheckedRowBytes(shape, format)),
      plane_bytes_(PlaneBytes(shape, row_bytes_)),
      memory_(static_cast<std::size_t>(2 * plane_bytes_), false) {}

void KVCache::CopyBlock(std::int64_t source, std::int64_t target) const {
  for (const std::int64_t block : {source, target}) {
    if (block < 0 || block >= shape_.num_blocks) {
      throw std::out_of_range("block " + std::to_string(block) + " is not in [0, " +
                              std::to_string(shape_.num_blocks) + ")");
    }
  }
  if (source == target) return;
  const auto size = static_cast<std::size_t>(RowOffset(1, 0, 0));
  std::memcpy(Key(target, 0, 0), Key(source, 0, 0), size);
  std::memcpy(Value(target, 0, 0), Value(source, 0, 0), size);
}

void KVCache::CheckBlocks(const BatchView& batch, std::int64_t sequence, std::int64_t first,
                          std::int64_t last) const {
  if (sequence < 0 || sequence >= batch.num_sequences) {
    throw std::out_of_range("sequence " + std::to_string(sequence) +
                            " has no block table; there are " +
                            std::to_string(batch.num_sequences));
  }
  if (first < 0 || last / shape_.block_size >= batch.max_blocks) {
    throw std::out_of_range("position " + std::to_string(first < 0 ? first : last) +
                            " lies outside the sequence's block table");
  }
  const std::int32_t* table = batch.BlockTable(sequence);
  for (std::int64_t i = first / shape_.block_size; i <= last / shape_.block_size; ++i) {
    if (table[i] < 0 || table[i] >= shape_.num_blocks) {
      throw std::out_of_range("block " + std::to_string(table[i]) + " of sequence " +
                              std::to_string(sequence) + " is not in [0, " +
                              std::to_string(shape_.num_blocks) + ")");
    }
  }
}

void StoreRow(const KernelTable& kernels, const float* values, std::int64_t head_dim, Format format,
              std::uint8_t* row) {
  if (format == Format::kF16) {
    // Rows are head_dim * 2 bytes from page-aligned memory: aligned for uint16_t.
    kernels.f32_to_f16(values, head_dim, reinterpret_cast<std::uint16_t*>(row));
    return;
  }
  for (std::int64_t i = 0; i < head_dim / kQ8BlockSize; ++i) {
    StoreQ8Block(kernels, values + i * kQ8BlockSize, row + i * kQ8BlockBytes);
  }
}

}  // namespace powerinfer
