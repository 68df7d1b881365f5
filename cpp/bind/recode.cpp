// Copies of matrices in other formats, and their losses.
#include "ops/recode.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <utility>

#include "bind/bind.h"
#include "bind/handles.h"
#include "ops/encode.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

/// Raises an exception of powerinfer.errors.
[[noreturn]] void Raise(const char* type_name, const std::string& message) {
  const nb::object type = nb::module_::import_("powerinfer.errors").attr(type_name);
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

/// A format that Recode has an encoder for.
Format TargetByName(const KernelTable& kernels, const std::string& name) {
  std::string encoders;
  for (std::size_t i = 0; i < kFormatInfo.size(); ++i) {
    const auto format = static_cast<Format>(i);
    if (!CanRecode(kernels, format)) continue;
    if (kFormatInfo[i].name == name) return format;
    encoders += (encoders.empty() ? "" : ", ") + std::string(kFormatInfo[i].name);
  }
  Raise("UnsupportedError",
        "weights cannot be recoded to '" + name + "'; there are encoders for " + encoders);
}

MatrixHandle BoundRecode(TeamHandle& team, const MatrixHandle& matrix,
                         const std::string& format_name, Arena& arena) {
  const MatrixView& source = WholeView(team, matrix);
  MatrixView copy = RecodedShape(source, TargetByName(team.shared.Kernels(), format_name));
  ArenaBlock block = arena.Allocate(static_cast<std::size_t>(copy.NumBytes()));
  copy.data = block.data;
  std::int64_t bad_row = -1;
  team.Run([&](const OpContext& context) { bad_row = Recode(context, source, copy, block.data); });
  if (bad_row >= 0) {
    Raise("NumericsError", "row " + std::to_string(bad_row) +
                               " of a weight matrix cannot be recoded to " + format_name +
                               ": it holds NaN, infinity or numbers beyond the format's scale");
  }
  return {std::move(block), copy};
}

/// An array of `length` numbers, or ShapeError.
template <typename T>
T* CheckedVector(const char* what, const Array<T, 1>& array, std::int64_t length) {
  CheckShape(what, 1, Size(array, 0), 1, length);
  return array.data();
}

/// Writes u8[rows, row bytes] of the target format to `out`. Returns the loss as squared error and
/// squared sum.
std::pair<double, double> BoundEncodeRows(TeamHandle& team, const MatrixHandle& matrix,
                                          const std::string& format_name,
                                          const std::optional<Array<const float, 1>>& importance,
                                          const Array<std::uint8_t, 2>& out) {
  const MatrixView& source = WholeView(team, matrix);
  const Format target = TargetByName(team.shared.Kernels(), format_name);
  if (source.columns % InfoOf(target).block_size != 0) {
    RaiseShapeError("rows of " + std::to_string(source.columns) + " are no whole blocks of " +
                    format_name);
  }
  CheckShape("out", Size(out, 0), Size(out, 1), source.rows, RowBytes(target, source.columns));
  const float* weights =
      importance ? CheckedVector("importance", *importance, source.columns) : nullptr;
  EncodingLoss loss;
  std::int64_t bad_row = -1;
  team.Run([&](const OpContext& context) {
    bad_row = EncodeRows(context, source, target, weights, out.data(), &loss);
  });
  if (bad_row >= 0) {
    Raise("NumericsError", "row " + std::to_string(bad_row) + " cannot be encoded as " +
                               format_name +
                               ": it holds NaN, infinity or numbers beyond the format's scale");
  }
  return {loss.squared_error, loss.squared_sum};
}

void BoundCopyStatistics(TeamHandle& team, const MatrixHandle& matrix, const MatrixHandle& copy,
                         const Array<const float, 1>& mean, const Array<const float, 1>& variance,
                         const Array<float, 1>& offset, const Array<float, 1>& noise) {
  const MatrixView& source = WholeView(team, matrix);
  const MatrixView& copied = WholeView(team, copy);
  const std::int64_t rows = matrix.view.rows;
  const std::int64_t columns = matrix.view.columns;
  CheckShape("copy", copy.view.rows, -1, rows, -1);
  if (copy.view.columns < columns) {
    CheckShape("copy", copy.view.rows, copy.view.columns, rows, columns);
  }
  const float* means = CheckedVector("mean", mean, columns);
  const float* variances = CheckedVector("variance", variance, columns);
  float* offsets = CheckedVector("offset", offset, rows);
  float* noises = CheckedVector("noise", noise, rows);
  team.Run([&](const OpContext& context) {
    CopyStatistics(context, source, copied, means, variances, offsets, noises);
  });
}

}  // namespace

void BindRecode(nb::module_& module) {
  module.def("recode", &BoundRecode, "team"_a, "matrix"_a, "format_name"_a, "arena"_a);
  module.def("encode_rows", &BoundEncodeRows, "team"_a, "matrix"_a, "format_name"_a,
             "importance"_a.none().noconvert(), "out"_a.noconvert());
  module.def("copy_statistics", &BoundCopyStatistics, "team"_a, "matrix"_a, "copy"_a,
             "mean"_a.noconvert(), "variance"_a.noconvert(), "offset"_a.noconvert(),
             "noise"_a.noconvert());
}

}  // namespace powerinfer
