// The kernels for arm64 with dotprod and fp16. Operation, layout and bounds: the -inl headers.
#define POWERINFER_ISA neon

#include "kernels/isa/neon/block_lanes.h"
#include "kernels/isa/neon/fp4.h"
#include "kernels/isa/shared/table-inl.h"
#include "kernels/isa_tables.h"

namespace powerinfer {

const KernelTable& NeonKernelTable() {
  static const KernelTable table = neon::MakeTable("neon", NeonGemm(), "neon dot product");
  return table;
}

}  // namespace powerinfer
