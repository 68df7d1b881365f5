#include "bind/arrays.h"

namespace nb = nanobind;

namespace powerinfer {
namespace {

std::string Dimension(std::int64_t size) { return size < 0 ? "any" : std::to_string(size); }

}  // namespace

void RaiseShapeError(const std::string& message) {
  const nb::object type = nb::module_::import_("powerinfer.errors").attr("ShapeError");
  PyErr_SetString(type.ptr(), message.c_str());
  throw nb::python_error();
}

void CheckShape(const char* what, std::int64_t rows, std::int64_t columns, std::int64_t wanted_rows,
                std::int64_t wanted_columns) {
  const bool is_right =
      (wanted_rows < 0 || rows == wanted_rows) && (wanted_columns < 0 || columns == wanted_columns);
  if (is_right) return;
  RaiseShapeError(std::string(what) + " is [" + std::to_string(rows) + ", " +
                  std::to_string(columns) + "], must be [" + Dimension(wanted_rows) + ", " +
                  Dimension(wanted_columns) + "]");
}

}  // namespace powerinfer
