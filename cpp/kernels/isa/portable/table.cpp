// The kernels for any CPU. Operation, layout and bounds: the -inl headers.
#define POWERINFER_ISA portable

#include "kernels/isa/portable/block_lanes.h"
#include "kernels/isa/portable/fp4.h"
#include "kernels/isa/portable/simd.h"
#include "kernels/isa/shared/table-inl.h"
#include "kernels/isa_tables.h"

namespace powerinfer {

const KernelTable& PortableKernelTable() {
  static const KernelTable table = portable::MakeTable("portable", PortableGemm(), "portable");
  return table;
}

}  // namespace powerinfer
