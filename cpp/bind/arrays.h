// Array arguments and the checks on them. Types, order and device are checked by nanobind (every
// array argument is .noconvert(): a silent copy of an output would lose the result); shapes here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "base/views.h"

namespace powerinfer {

template <typename T, std::size_t kDims>
using Array =
    nanobind::ndarray<T, nanobind::ndim<kDims>, nanobind::c_contig, nanobind::device::cpu>;

using InputRows = Array<const float, 2>;
using OutputRows = Array<float, 2>;

/// Raises powerinfer.errors.ShapeError. Needs the GIL.
[[noreturn]] void RaiseShapeError(const std::string& message);

/// Raises ShapeError "`what` is [rows, columns], must be ..." unless the sizes agree; a negative
/// wanted size means any.
void CheckShape(const char* what, std::int64_t rows, std::int64_t columns, std::int64_t wanted_rows,
                std::int64_t wanted_columns);

template <typename T>
std::int64_t Size(const T& array, std::size_t axis) {
  return static_cast<std::int64_t>(array.shape(axis));
}

/// View of an array after CheckShape.
template <typename T>
RowsView<T> CheckedRows(const char* what, const Array<T, 2>& array, std::int64_t wanted_rows,
                        std::int64_t wanted_columns) {
  CheckShape(what, Size(array, 0), Size(array, 1), wanted_rows, wanted_columns);
  return {array.data(), Size(array, 0), Size(array, 1), Size(array, 1)};
}

}  // namespace powerinfer
