// The extension module powerinfer._core: one file per topic adds its part.
#include "bind/bind.h"

NB_MODULE(_core, module) {
  // A daemon thread that the program's end stops keeps its objects: no leak worth a report.
  nanobind::set_leak_warnings(false);
  module.doc() = "Native operations of powerinfer; used through powerinfer.ops.cpu.ops only.";
  powerinfer::BindMachine(module);
  powerinfer::BindHandles(module);
  powerinfer::BindRows(module);
  powerinfer::BindLinear(module);
  powerinfer::BindRecode(module);
  powerinfer::BindAttention(module);
  powerinfer::BindPredictor(module);
  powerinfer::BindFFN(module);
  powerinfer::BindExchange(module);
  powerinfer::BindBandwidth(module);
}
