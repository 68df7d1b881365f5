// The extension module powerinfer._core: one file per topic adds its part.
#include <cstdlib>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bind/bind.h"

namespace {

/// Keeps freed memory in this process for its next arrays: those of a prompt's step are some MB
/// each, and the system would clear the pages again at every layer, some 8 % of a prompt's time on
/// a virtual machine. Limits set in the user's environment take precedence.
void KeepFreedMemory() {
#if defined(__GLIBC__)
  // mallopt locks what it changes; the interpreter is held, so no Python changes the environment.
  // NOLINTBEGIN(concurrency-mt-unsafe)
  constexpr int kMegabyte = 1 << 20;
  constexpr auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (!is_set("MALLOC_TRIM_THRESHOLD_")) mallopt(M_TRIM_THRESHOLD, 256 * kMegabyte);
  if (!is_set("MALLOC_MMAP_THRESHOLD_")) mallopt(M_MMAP_THRESHOLD, 32 * kMegabyte);
  // NOLINTEND(concurrency-mt-unsafe)
#endif
}

/// Gives freed memory back to the system, for when a model has gone.
void ReleaseFreedMemory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace

NB_MODULE(_core, module) {
  // A daemon thread stopped by the end of the program keeps its objects: no leak worth a report.
  nanobind::set_leak_warnings(false);
  module.doc() = "Native operations of powerinfer; used through powerinfer.ops.cpu only.";
  module.def("keep_freed_memory", &KeepFreedMemory);
  module.def("release_freed_memory", &ReleaseFreedMemory);
  powerinfer::BindMachine(module);
  powerinfer::BindHandles(module);
  powerinfer::BindRows(module);
  powerinfer::BindLinear(module);
  powerinfer::BindRecode(module);
  powerinfer::BindLogits(module);
  powerinfer::BindScreenedHead(module);
  powerinfer::BindAttention(module);
  powerinfer::BindState(module);
  powerinfer::BindLazyExperts(module);
  powerinfer::BindPredictor(module);
  powerinfer::BindFFN(module);
  powerinfer::BindFiring(module);
  powerinfer::BindExchange(module);
  powerinfer::BindStepRecord(module);
  powerinfer::BindBandwidth(module);
}
