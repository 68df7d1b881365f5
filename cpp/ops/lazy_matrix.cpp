#include "ops/lazy_matrix.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/mapped_pages.h"
#include "base/row_chunks.h"
#include "quant/superblock.h"

namespace powerinfer {
namespace {

/// The rows of all pieces. Throws std::invalid_argument unless they are experts of one kind.
std::int64_t CheckedRows(const std::vector<MatrixView>& pieces, std::int64_t rows_per_expert) {
  if (pieces.empty() || rows_per_expert < 1) throw std::invalid_argument("there are no experts");
  const MatrixView& first = pieces.front();
  for (const MatrixView& piece : pieces) {
    if (piece.format != first.format || piece.columns != first.columns) {
      throw std::invalid_argument("experts of one matrix must have one format and width");
    }
    if (piece.rows != first.rows || piece.rows % rows_per_expert != 0 ||
        (pieces.size() > 1 && piece.rows != rows_per_expert)) {
      throw std::invalid_argument("a matrix of " + std::to_string(piece.rows) +
                                  " rows is not made of experts of " +
                                  std::to_string(rows_per_expert));
    }
  }
  return first.rows * static_cast<std::int64_t>(pieces.size());
}

}  // namespace

LazyMatrix::LazyMatrix(std::vector<MatrixView> pieces, std::int64_t rows_per_expert, Arena& arena,
                       bool is_repacked)
    : pieces_(std::move(pieces)),
      rows_per_expert_(rows_per_expert),
      is_filled_(
          static_cast<std::size_t>(CheckedRows(pieces_, rows_per_expert) / rows_per_expert)) {
  const MatrixView& first = pieces_.front();
  view_ = first;
  view_.rows = CheckedRows(pieces_, rows_per_expert);
  if (is_repacked) {
    view_.format = SuperblockFormat(first.format);
    if (!CanRepack(first.format, first.columns)) {
      throw std::invalid_argument("the format has no superblocks of these columns");
    }
  }
  view_.row_bytes = RowBytes(view_.format, view_.columns);
  memory_ = arena.Allocate(static_cast<std::size_t>(view_.NumBytes()));
  view_.data = memory_.data;
  const ReadOnlyFiles files;
  is_mapped_ = std::ranges::all_of(pieces_, [&](const MatrixView& piece) {
    return files.Contain(piece.data, static_cast<std::size_t>(piece.NumBytes()));
  });
}

MatrixView LazyMatrix::Source(std::int64_t expert) const {
  if (pieces_.size() == 1) return pieces_.front().Part(expert, NumExperts());
  return pieces_[static_cast<std::size_t>(expert)];
}

void LazyMatrix::Copy(const OpContext& context, std::int64_t expert) {
  const MatrixView source = Source(expert);
  std::uint8_t* out = memory_.data + expert * rows_per_expert_ * view_.row_bytes;
  ForEachRow(context.team, source.rows, source.columns, [&](std::int64_t row) {
    std::uint8_t* own = out + row * view_.row_bytes;
    if (view_.format != source.format) {
      RepackToSuperblocks(source.format, source.Row(row), 1, source.columns, own);
    } else {
      std::memcpy(own, source.Row(row), static_cast<std::size_t>(view_.row_bytes));
    }
  });
  if (is_mapped_) ReleasePages(source.data, static_cast<std::size_t>(source.NumBytes()));
}

void LazyMatrix::Fill(const OpContext& context, std::int64_t expert) {
  std::atomic<bool>& is_filled = is_filled_[static_cast<std::size_t>(expert)];
  if (is_filled.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_filled.load(std::memory_order_relaxed)) return;
  Copy(context, expert);
  is_filled.store(true, std::memory_order_release);
}

void LazyMatrix::FillRows(const OpContext& context, std::span<const std::int32_t> rows) {
  for (const std::int32_t row : rows) {
    if (row >= 0 && row < view_.rows) Fill(context, row / rows_per_expert_);
  }
}

bool LazyMatrix::IsFull() const {
  return std::ranges::all_of(is_filled_, [](const std::atomic<bool>& is_filled) {
    return is_filled.load(std::memory_order_acquire);
  });
}

void LazyMatrix::FillAll(const OpContext& context) {
  for (std::int64_t expert = 0; expert < NumExperts(); ++expert) Fill(context, expert);
}

}  // namespace powerinfer
