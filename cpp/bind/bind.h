// What the binding files share: each adds one topic to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace powerinfer {

void BindMachine(nanobind::module_& module);  ///< CPU features, kernel tables

}  // namespace powerinfer
