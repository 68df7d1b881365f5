// Non-owning views of rows of numbers and of weight matrices. No allocation, no checks in release.
#pragma once

#include <cstddef>
#include <cstdint>

namespace powerinfer {

/// T[rows, columns] with `stride` elements between rows.
template <typename T>
struct RowsView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;

  T* Row(std::int64_t i) const { return data + i * stride; }
  /// `count` rows from `first` on.
  RowsView Some(std::int64_t first, std::int64_t count) const {
    return {Row(first), count, columns, stride};
  }
};

/// Contiguous rows.
inline RowsView<float> Rows(float* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns};
}

inline RowsView<const float> ReadOnly(RowsView<float> x) {
  return {x.data, x.rows, x.columns, x.stride};
}

}  // namespace powerinfer
