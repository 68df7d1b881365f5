// Keys and values of one layer, in blocks of positions.
#pragma once

#include <cstdint>

#include "base/page_memory.h"
#include "kernels/kernel_table.h"
#include "ops/op_context.h"
#include "quant/formats.h"

namespace powerinfer {

/// The tokens of one step and where their sequences keep their blocks; see values.py, Batch.
struct BatchView {
  const std::int32_t* positions = nullptr;     // i32[num_tokens]
  const std::int32_t* sequences = nullptr;     // i32[num_tokens]
  const std::int32_t* block_tables = nullptr;  // i32[num_sequences, max_blocks]
  std::int64_t num_tokens = 0;
  std::int64_t num_sequences = 0;
  std::int64_t max_blocks = 0;
  const bool* is_prompt = nullptr;  // bool[num_tokens]; null: all are decode rows
  // i32[num_sequences]; null for models without state
  const std::int32_t* state_sources = nullptr;
  const std::int32_t* state_targets = nullptr;

  RowKind Kind(std::int64_t token) const {
    return is_prompt != nullptr && is_prompt[token] ? RowKind::kPrompt : RowKind::kDecode;
  }
  const std::int32_t* BlockTable(std::int64_t sequence) const {
    return block_tables + sequence * max_blocks;
  }
};

struct KVShape {
  std::int64_t num_blocks = 0;
  std::int64_t block_size = 0;  ///< positions per block
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
};

/// Layout [num_blocks, num_kv_heads, block_size, head_dim] for keys and again for values: the rows
/// of one head in one block lie together. Memory is committed when it is first written.
class KVCache {
 public:
  /// format: kF16, or kQ8_0 (head_dim a multiple of 32). Throws std::invalid_argument.
  KVCache(const KVShape& shape, Format format);

  const KVShape& Shape() const { return shape_; }
  Format ElementFormat() const { return format_; }
  std::int64_t RowSize() const { return row_bytes_; }
  /// Bytes of keys and values together.
  std::int64_t NumBytes() const { return 2 * plane_bytes_; }

  /// Row of position `offset` in the block; the rows of later positions follow.
  std::uint8_t* Key(std::int64_t block, std::int64_t kv_head, std::int64_t offset) const {
    return memory_.Data() + RowOffset(block, kv_head, offset);
  }
  std::uint8_t* Value(std::int64_t block, std::int64_t kv_head, std::int64_t offset) const {
    return memory_.Data() + plane_bytes_ + RowOffset(block, kv_head, offset);
  }

  /// Copies keys and values of a block. Throws std::out_of_range.
  void CopyBlock(std::int64_t source, std::int64_t target) const;

  /// Throws std::out_of_range unless the blocks of positions [first, last] of `sequence` exist.
  void CheckBlocks(const BatchView& batch, std::int64_t sequence, std::int64_t first,
                   std::int64_t last) const;

 private:
  std::int64_t RowOffset(std::int64_t block, std::int64_t kv_head, std::int64_t offset) const {
    return ((block * shape_.num_kv_heads + kv_head) * shape_.block_size + offset) * row_bytes_;
  }

  KVShape shape_;
  Format format_;
  std::int64_t row_bytes_;
  std::int64_t plane_bytes_;
  PageMemory memory_;
};

/// Writes f32[head_dim] as one row of the cache's format.
void StoreRow(const KernelTable& kernels, const float* values, std::int64_t head_dim, Format format,
              std::uint8_t* row);

}  // namespace powerinfer
