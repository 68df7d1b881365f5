// The kernels for AVX-512 F, BW, VL, DQ and VNNI. Operation, layout and bounds: the -inl headers.
#define POWERINFER_ISA avx512

// GCC 12 takes the deliberately undefined operand inside its own intrinsics for a mistake (its bug
// 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "kernels/isa/avx512/block_lanes.h"
#include "kernels/isa/avx512/fp4.h"
#include "kernels/isa/avx512/nibble_rows.h"
#include "kernels/isa/avx512/row_ends.h"
#include "kernels/isa/avx512/vectors.h"
#include "kernels/isa/shared/table-inl.h"
#include "kernels/isa_tables.h"

namespace powerinfer {

const KernelTable& Avx512KernelTable() {
  static const KernelTable table = avx512::MakeTable("avx512", Avx512Gemm(), "avx512 vnni");
  return table;
}

}  // namespace powerinfer
