// A matrix of experts whose rows come to memory when their expert is first chosen.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/page_memory.h"
#include "ops/linear.h"
#include "ops/op_context.h"

namespace powerinfer {

/// [num_experts * rows_per_expert, columns], expert by expert, copied from matrices anywhere in
/// memory. Memory is reserved at once, but only touched by Fill. Threads of several teams may fill
/// and read it.
class LazyMatrix {
 public:
  /// pieces: one matrix of all experts, or one of rows_per_expert rows for each; they must not
  /// move. is_repacked: as superblocks, if the format and the columns allow it. Throws
  /// std::invalid_argument if the pieces do not fit together.
  LazyMatrix(std::vector<MatrixView> pieces, std::int64_t rows_per_expert, Arena& arena,
             bool is_repacked);

  /// Rows of experts that are not filled are zero.
  const MatrixView& View() const { return view_; }
  std::int64_t NumExperts() const { return view_.rows / rows_per_expert_; }

  /// Makes the rows of an expert readable, if they are not yet, and releases the pages of a mapped
  /// file that they came from.
  void Fill(const OpContext& context, std::int64_t expert);
  /// Fills the experts of these rows; rows that do not exist are ignored.
  void FillRows(const OpContext& context, std::span<const std::int32_t> rows);
  void FillAll(const OpContext& context);
  bool IsFull() const;

 private:
  MatrixView Source(std::int64_t expert) const;
  void Copy(const OpContext& context, std::int64_t expert);

  std::vector<MatrixView> pieces_;
  std::int64_t rows_per_expert_;
  ArenaBlock memory_;
  MatrixView view_;
  bool is_mapped_ = false;  // all pieces, from files
  std::mutex mutex_;
  std::vector<std::atomic<bool>> is_filled_;  // by expert
};

}  // namespace powerinfer
