// The kernels for AVX2, FMA and F16C. Operation, layout and bounds: the -inl headers.
#define POWERINFER_ISA avx2

#include "kernels/isa/avx2/block_lanes.h"
#include "kernels/isa/avx2/fp4.h"
#include "kernels/isa/avx2/vectors.h"
#include "kernels/isa/shared/table-inl.h"
#include "kernels/isa_tables.h"

namespace powerinfer {

const KernelTable& Avx2KernelTable() {
  static const KernelTable table = avx2::MakeTable("avx2", Avx2Gemm(), "avx2");
  return table;
}

}  // namespace powerinfer
