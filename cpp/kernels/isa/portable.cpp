// The kernels for any CPU. Operation, layout and bounds: the -inl headers.
#define POWERINFER_ISA portable

#include "kernels/isa/blocks_portable.h"
#include "kernels/isa/simd_portable.h"
#include "kernels/isa/table-inl.h"
#include "kernels/isa_tables.h"

namespace powerinfer {

const KernelTable& PortableKernelTable() {
  static const KernelTable table = portable::MakeTable("portable", PortableGemm());
  return table;
}

}  // namespace powerinfer
