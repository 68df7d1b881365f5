// What sampling asks of all logits.
#include "ops/logits.h"

#include <string>

#include "bind/arrays.h"
#include "bind/bind.h"
#include "bind/released_gil.h"

namespace nb = nanobind;
using namespace nb::literals;  // NOLINT: argument names

namespace powerinfer {
namespace {

using NumbersOfAnyShape = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

bool BoundAllFinite(const NumbersOfAnyShape& values) {
  const ReleasedGil released;
  return AllFinite({values.data(), values.size()});
}

void BoundWriteLargest(const Array<const float, 1>& logits, const Array<std::int64_t, 1>& ids) {
  if (ids.size() > logits.size()) {
    RaiseShapeError("room for " + std::to_string(ids.size()) + " ids, but there are only " +
                    std::to_string(logits.size()) + " logits");
  }
  const ReleasedGil released;
  WriteLargest({logits.data(), logits.size()}, {ids.data(), ids.size()});
}

}  // namespace

void BindLogits(nb::module_& module) {
  module.def("all_finite", &BoundAllFinite, "values"_a.noconvert());
  module.def("write_largest", &BoundWriteLargest, "logits"_a.noconvert(), "ids"_a.noconvert());
}

}  // namespace powerinfer
